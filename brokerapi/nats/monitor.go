package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxAnswer bounds what is read from the monitoring port, in bytes. /varz of a
// server with thousands of routes is well below.
const maxAnswer = 8 << 20

func newMonitorClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{ // no proxy: the broker is beside us
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 2,
			IdleConnTimeout:     30 * time.Second,
			TLSHandshakeTimeout: 5 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// answer is what the monitoring port said.
type answer struct {
	status      int
	contentType string
	body        []byte
}

// get asks the monitoring port, bounded in time and size.
func (b *Broker) get(ctx context.Context, path string) (answer, error) {
	if b.life.Err() != nil {
		return answer{}, errClosed
	}
	ctx, done := b.within(ctx, b.life)
	defer done()
	a, err := b.fetch(ctx, path)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // says which bound was hit
		}
		return answer{}, fmt.Errorf("--nats-monitor %s: GET %s: %w%s", b.monitor, path, err, monitorRemedy(err))
	}
	return a, nil
}

func monitorRemedy(err error) string {
	var refused *net.OpError
	if errors.As(err, &refused) && refused.Op == "dial" {
		return ": start nats-server with -m " + monitorPort + ", or set --nats-monitor to its monitoring port"
	}
	return ""
}

func (b *Broker) fetch(ctx context.Context, path string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.monitor+path, nil)
	if err != nil {
		return answer{}, err
	}
	resp, err := b.http.Do(req)
	if err != nil {
		var wrapped interface{ Unwrap() error } // *url.Error repeats method and URL
		if errors.As(err, &wrapped) {
			err = wrapped.Unwrap()
		}
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return answer{}, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return answer{}, fmt.Errorf("the answer is larger than %d bytes: is this nats-server's monitoring port?", maxAnswer)
	}
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), body}, nil
}

// varz is the part of /varz that is used.
type varz struct {
	ServerID   string    `json:"server_id"`
	ServerName string    `json:"server_name"`
	Version    string    `json:"version"`
	Start      time.Time `json:"start"`
	JetStream  struct {
		Config *struct {
			StoreDir string `json:"store_dir"`
		} `json:"config"`
	} `json:"jetstream"`
}

// varz reads who the monitoring port says it is. An answer that no nats-server
// gives wraps ErrIdentity; a 5xx may pass and does not.
func (b *Broker) varz(ctx context.Context) (varz, error) {
	a, err := b.get(ctx, "/varz")
	if err != nil {
		return varz{}, err
	}
	if a.status >= 500 {
		return varz{}, fmt.Errorf("--nats-monitor %s: GET /varz answered %d %s: %q", b.monitor, a.status, http.StatusText(a.status), excerpt(a.body))
	}
	var v varz
	if err := json.Unmarshal(a.body, &v); a.status != http.StatusOK || err != nil || v.ServerID == "" {
		return varz{}, identityErrorf(
			"--nats-monitor %s: GET /varz answered %d %s (%s) %q, which no nats-server says: set --nats-monitor to nats-server's monitoring port (nats-server -m %s)",
			b.monitor, a.status, http.StatusText(a.status), contentType(a), excerpt(a.body), monitorPort)
	}
	return v, nil
}

func contentType(a answer) string {
	if a.contentType == "" {
		return "no content type"
	}
	return a.contentType
}

// excerpt is enough of an unexpected answer to recognise it, in bytes.
func excerpt(body []byte) string {
	return excerptOf(string(body), 80)
}

func excerptOf(text string, enough int) string {
	if len(text) > enough {
		return text[:enough] + "…"
	}
	return text
}
