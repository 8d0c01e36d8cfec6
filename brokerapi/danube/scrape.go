package danube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxMetrics is how much of the metrics is read, in bytes. Each line carries the label
// that is wanted, so what comes later is not missed.
const maxMetrics = 1 << 20

func newMetricsClient(life context.Context, f files) *http.Client {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, addr)
	}
	return &http.Client{
		Transport: &http.Transport{ // no proxy: the broker is beside us
			DialContext: dial,
			DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				cfg, err := f.tls()
				if err != nil {
					return nil, err
				}
				if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
					return nil, err
				}
				raw, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				conn := tls.Client(raw, cfg)
				ctx, cancel := context.WithTimeout(ctx, dialTimeout)
				defer cancel()
				defer context.AfterFunc(life, cancel)()
				if err := conn.HandshakeContext(ctx); err != nil {
					raw.Close()
					return nil, err
				}
				return conn, nil
			},
			MaxIdleConnsPerHost:    1,
			MaxResponseHeaderBytes: maxHeaders,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// scrape reads the broker's metrics.
func (n *node) scrape(ctx context.Context) (exposed, error) {
	e, err := n.fetchMetrics(ctx)
	if err != nil {
		return exposed{}, fmt.Errorf("--danube-metrics %s: %w", n.at.metrics, err)
	}
	return e, nil
}

func (n *node) fetchMetrics(ctx context.Context) (exposed, error) {
	patience := n.timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/2) // what is left is for those who can be asked instead
	}
	ctx, slow := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v: %w", patience.Round(time.Millisecond), context.DeadlineExceeded))
	defer slow()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.life, func() { cancel(errClosed) })()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.at.metrics.String()+"/metrics", nil)
	if err != nil {
		return exposed{}, err
	}
	resp, err := n.http.Do(req)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return exposed{}, cause // says which bound was hit
	}
	if err != nil {
		var wrapped interface{ Unwrap() error } // *url.Error repeats method and URL
		if errors.As(err, &wrapped) {
			err = wrapped.Unwrap()
		}
		return exposed{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return exposed{}, fmt.Errorf("answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return exposed{}, fmt.Errorf("read the answer: %w", err)
	}
	return parseMetrics(body), nil
}
