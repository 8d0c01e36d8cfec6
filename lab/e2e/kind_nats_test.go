package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
)

// natsKind is a NATS server with JetStream, whose registration is the sidecar's.
var natsKind = kind{
	name: "nats",
	prepare: func(s *stage, o brokerOptions) (broker, error) {
		n, err := s.NewNATS(harness.NATSOptions{Name: o.ID, Place: o.Place, Extra: o.Conf})
		return natsBroker{n}, err
	},
}

type natsBroker struct{ *harness.NATS }

func (b natsBroker) Driver() []string {
	return []string{"--driver", "nats", "--broker-admin", b.URL(), "--nats-monitor", b.MonitorURL()}
}

func (b natsBroker) Connect() (client, error) {
	c, err := b.NATS.Connect()
	return natsClient{c}, err
}

func (b natsBroker) Litter(ctx context.Context) error {
	c, err := b.NATS.Connect()
	if err != nil {
		return err
	}
	defer c.Close()
	res, err := c.RequestWithContext(ctx, "$JS.API.STREAM.CREATE.old",
		[]byte(`{"name":"old","subjects":["old.>"],"storage":"file","num_replicas":1,"retention":"limits","discard":"old"}`))
	if err == nil && strings.Contains(string(res.Data), `"error"`) {
		err = errors.New(string(res.Data))
	}
	if err != nil {
		return fmt.Errorf("make a stream: %w", err)
	}
	return nil
}

// Disasters: a NATS server never loses a stream by itself.
func (b natsBroker) Disasters() ([]string, error) { return nil, nil }

type natsClient struct{ *nats.Conn }

func (c natsClient) Publish(ctx context.Context, topic string) error {
	if !c.IsConnected() { // it would wait in the client
		return errors.New("not connected")
	}
	_, err := harness.Publish(ctx, c.Conn, topic, []byte("e2e"))
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	return err
}
