package nats

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// Probe implements brokerapi.Broker. It costs one JetStream request and one
// GET /healthz; once for each server process it also compares the identities
// of the two ports with each other and with Config.BrokerID. Of a server that does not take
// us in its monitor says who it is.
func (b *Broker) Probe(ctx context.Context) (who brokerapi.Report, err error) {
	nc, _, err := b.connected(ctx)
	if err != nil {
		if errors.Is(err, brokerapi.ErrUnseen) {
			if v, unread := b.varz(ctx); unread == nil && brokerapi.Misnamed(b.admin, v.report().Name, b.cfg.BrokerID) == nil {
				who = v.report()
			}
		}
		return who, err
	}
	known := b.known.Load()
	if known == nil || known.ServerID != nc.ConnectedServerId() {
		v, err := b.varz(ctx)
		if err == nil {
			err = b.sameServer(ctx, nc, v)
		}
		if err != nil {
			return who, err
		}
		known = &v
		b.known.Store(known)
	}
	if who = known.report(); b.leaving.Load() == who.Instance {
		who.Leaving = "nats-server is in lame duck mode: it sends its clients away, and ends"
	}
	return who, b.healthy(ctx)
}

// healthy is nil when JetStream answers and the server says that it is well.
func (b *Broker) healthy(ctx context.Context) error {
	if err := b.jetStreamAnswers(ctx); err != nil {
		return fmt.Errorf("ask JetStream for its state: %w", err)
	}
	a, err := b.get(ctx, "/healthz?js-enabled-only=true")
	if err != nil {
		return err
	}
	var said struct {
		Status string `json:"status"`
	}
	switch err := a.JSON(&said); {
	case err != nil || said.Status == "":
		return cmp.Or(a.Want(http.StatusOK), a.Errorf("no healthy nats-server says that"))
	case a.Status != http.StatusOK || said.Status != "ok": // its own word, and no refusal of us
		return fmt.Errorf("%v: see nats-server's log", a.Errorf(""))
	}
	return nil
}

// jetStreamAnswers asks for the account's state. nats-server gives that out under
// locks which it also needs to create streams: while thousands of topics are
// loaded the answer takes seconds, and yet nothing is wrong. So any other answer
// of JetStream since the question proves as much.
func (b *Broker) jetStreamAnswers(ctx context.Context) error {
	asked := time.Now()
	patience := b.cfg.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, deadline.Sub(asked)*3/4) // the rest is for /healthz
	}
	ask, done := brokerapi.Bounded(ctx, b.life, patience.Round(time.Millisecond))
	defer done()
	err := b.api(ask, "INFO", nil, nil)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && b.answered.Load() > asked.UnixNano() {
		return nil
	}
	return err
}

// varz is the part of /varz that is used.
type varz struct {
	ServerID   string    `json:"server_id"`
	ServerName string    `json:"server_name"`
	Version    string    `json:"version"`
	Start      time.Time `json:"start"`
	JetStream  struct {
		Config *struct {
			StoreDir   string        `json:"store_dir"`
			MaxStorage int64         `json:"max_storage"`
			Sync       time.Duration `json:"sync_interval"` // 0: an older server does not say
			SyncAlways bool          `json:"sync_always"`
		} `json:"config"`
		Stats struct {
			Storage int64 `json:"storage"`
		} `json:"stats"`
		Meta json.RawMessage `json:"meta"` // of a JetStream cluster; empty: it is in none
	} `json:"jetstream"`
}

// get asks the monitoring port.
func (b *Broker) get(ctx context.Context, path string) (*rest.Answer, error) {
	a, err := b.monitor.Do(ctx, rest.Request{Path: path})
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, io.EOF) || strings.Contains(fmt.Sprint(err), "malformed HTTP ") {
		return nil, fmt.Errorf("%w: start nats-server with -m %s, or set --nats-monitor to its monitoring port", err, monitorPort)
	}
	return a, err
}

// varz reads who the monitoring port says it is. An answer that no nats-server
// gives wraps ErrIdentity; a 5xx may pass and does not.
func (b *Broker) varz(ctx context.Context) (v varz, err error) {
	a, err := b.get(ctx, "/varz")
	if err != nil {
		return v, err
	}
	if err = a.Want(http.StatusOK); a.Status >= 500 || errors.Is(err, brokerapi.ErrUnseen) {
		return v, err
	}
	if a.Status == http.StatusBadRequest { // as it is to who speaks http:// to https://
		return v, brokerapi.Errorf(brokerapi.ErrIdentity, "%v", err)
	}
	if err != nil || json.Unmarshal(a.Body, &v) != nil || v.ServerID == "" {
		return v, brokerapi.Errorf(brokerapi.ErrIdentity, "%v", a.Errorf("no nats-server says that: set --nats-monitor to its monitoring port (nats-server -m %s)", monitorPort))
	}
	return v, nil
}

// report is who the server is. Name is its name if one is set (an unnamed server calls
// itself by its id, which is new at every start); Instance is the server id.
func (v varz) report() brokerapi.Report {
	who := brokerapi.Report{Instance: v.ServerID, StartedAt: v.Start, Version: v.Version}
	if v.ServerName != v.ServerID {
		who.Name = v.ServerName
	}
	if c := v.JetStream.Config; c != nil {
		// nats-server keeps its files in a folder of this name below the configured one.
		who.DataDir = strings.TrimSuffix(strings.TrimSuffix(c.StoreDir, "/"), "/jetstream")
	}
	return who
}

// sameServer is nil if the client connection and the monitor are one process,
// and it does not go by another broker's name.
func (b *Broker) sameServer(ctx context.Context, nc *client.Conn, v varz) error {
	if nc.ConnectedServerId() != v.ServerID {
		// A restart may show at the monitor first: ask the held connection.
		flush, done := brokerapi.Bounded(ctx, b.life, b.cfg.Timeout)
		defer done()
		if err := nc.FlushWithContext(flush); err != nil {
			return fmt.Errorf("--broker-admin %s: ask the held connection: %w", b.admin, err)
		}
		if id := nc.ConnectedServerId(); id != v.ServerID {
			return brokerapi.Errorf(brokerapi.ErrIdentity, "--broker-admin %s is server %q (%s) and --nats-monitor %s is server %q (%s): set both to ports of the same server",
				b.admin, nc.ConnectedServerName(), id, b.monitor.URL(), v.ServerName, v.ServerID)
		}
	}
	return brokerapi.Misnamed(b.admin, v.report().Name, b.cfg.BrokerID)
}
