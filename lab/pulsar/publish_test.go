//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"holdfast/lab/harness"
)

// client is an ordinary client of a cluster, for one message at a time.
type client struct{ pulsar.Client }

func connect(t *testing.T, b *harness.ApacheBroker) *client {
	t.Helper()
	c, err := Connect(b)
	ok(t, err)
	t.Cleanup(c.Close)
	return &client{c}
}

// publish sends one message with a producer of its own and returns when it is stored.
func (c *client) publish(ctx context.Context, topic string, data []byte) error {
	p, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: 10 * time.Second})
	if err != nil {
		return fmt.Errorf("make a producer of %s: %w", topic, err)
	}
	defer p.Close()
	_, err = p.Send(ctx, &pulsar.ProducerMessage{Payload: data})
	return err
}
