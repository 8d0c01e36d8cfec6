package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// identityErrorf is an error that wraps brokerapi.ErrIdentity.
func identityErrorf(format string, args ...any) error {
	return &identityError{fmt.Sprintf(format, args...)}
}

type identityError struct{ message string }

func (e *identityError) Error() string { return e.message }
func (e *identityError) Unwrap() error { return brokerapi.ErrIdentity }

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

// get asks the monitoring port.
func (b *Broker) get(ctx context.Context, path string) (*rest.Answer, error) {
	a, err := b.monitor.Do(ctx, rest.Request{Path: path})
	if errors.Is(err, syscall.ECONNREFUSED) {
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
	if err := a.Want(http.StatusOK); a.Status >= 500 || errors.Is(err, brokerapi.ErrUnseen) {
		return v, err
	}
	if err := json.Unmarshal(a.Body, &v); a.Status != http.StatusOK || err != nil || v.ServerID == "" {
		return v, identityErrorf("%v", a.Errorf("no nats-server says that: set --nats-monitor to its monitoring port (nats-server -m %s)", monitorPort))
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
// and it does not carry another broker's name.
func (b *Broker) sameServer(ctx context.Context, nc *client.Conn, v varz) error {
	if nc.ConnectedServerId() != v.ServerID {
		// A restart may show at the monitor first: ask the held connection.
		flush, done := b.within(ctx, b.life)
		defer done()
		if err := nc.FlushWithContext(flush); err != nil {
			return fmt.Errorf("--broker-admin %s: ask the held connection: %w", b.admin, err)
		}
		if id := nc.ConnectedServerId(); id != v.ServerID {
			return identityErrorf(
				"--broker-admin %s is server %q (%s) and --nats-monitor %s is server %q (%s): set both to ports of the same server",
				b.admin, nc.ConnectedServerName(), id, b.monitor.URL(), v.ServerName, v.ServerID)
		}
	}
	return b.named(v)
}

// named is nil if the server does not carry another broker's name. One whose name no broker
// can go by has --broker-id instead.
func (b *Broker) named(v varz) error {
	if b.brokerID == "" || v.ServerName == v.ServerID || v.ServerName == b.brokerID || brokerapi.NameFlaw(v.ServerName) != "" {
		return nil
	}
	return identityErrorf("--broker-admin %s: the broker there calls itself %q, --broker-id says %q: point --broker-admin at %s's own port, or set --broker-id to %s",
		b.admin, v.ServerName, b.brokerID, b.brokerID, v.ServerName)
}
