package harness

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
)

// The hands of somebody who works on a server's streams and knows nothing of Holdfast.
// Each expects that the server has one stream.

// RestoreSubject gives the stream the topic's subject, whatever it has.
func RestoreSubject(ctx context.Context, c *nats.Conn, topic string) error {
	js, stream, err := onlyStream(ctx, c)
	if err != nil {
		return err
	}
	stream.Subjects = []string{Subject(topic)}
	if _, err := js.UpdateStream(stream, nats.Context(ctx)); err != nil {
		return fmt.Errorf("restore the subject of %s: %w", topic, err)
	}
	return nil
}

// CreateStream deletes the stream, and creates it again with the topic's subject. A stream of
// another subject stays beside it: nats-server 2.15.2 removes the account's directory a moment
// after its last stream, and may remove the new one's files with it.
func CreateStream(ctx context.Context, c *nats.Conn, topic string) error {
	js, stream, err := onlyStream(ctx, c)
	if err != nil {
		return err
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: besideStream, Subjects: []string{besideStream}}, nats.Context(ctx)); err != nil {
		return fmt.Errorf("create a stream beside that of %s: %w", topic, err)
	}
	if err := js.DeleteStream(stream.Name, nats.Context(ctx)); err != nil {
		return fmt.Errorf("delete the stream of %s: %w", topic, err)
	}
	stream.Subjects = []string{Subject(topic)}
	if _, err := js.AddStream(stream, nats.Context(ctx)); err != nil {
		return fmt.Errorf("create the stream of %s: %w", topic, err)
	}
	return nil
}

// besideStream keeps the directory of its account.
const besideStream = "beside"

func onlyStream(ctx context.Context, c *nats.Conn) (nats.JetStreamContext, *nats.StreamConfig, error) {
	js, err := c.JetStream()
	if err != nil {
		return nil, nil, fmt.Errorf("open JetStream: %w", err)
	}
	var streams []*nats.StreamConfig
	for info := range js.Streams(nats.Context(ctx)) {
		if info.Config.Name != besideStream {
			streams = append(streams, &info.Config)
		}
	}
	if len(streams) != 1 {
		return nil, nil, fmt.Errorf("%d streams, want one", len(streams))
	}
	return js, streams[0], nil
}
