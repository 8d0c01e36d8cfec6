package conformance

import (
	"context"
	"errors"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// TestNATSSaysOfASealedStreamThatItIsServedAgain is what a handover looks at: whoever publishes to one that
// somebody else has put back would lose the message.
func TestNATSSaysOfASealedStreamThatItIsServedAgain(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, _ mover) {
		const topic = "/move/reopened"
		ctx := bound(t)
		do(t, source.Serve(ctx, topic, nil))
		if e := must[moves.Extent](t)(source.Extent(ctx, topic)); !e.Served {
			t.Error("it is served, and does not say so")
		}
		if e := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", true)); e.Served {
			t.Error("sealed, it is served")
		}
		do(t, source.with(func(ctx context.Context, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, streamOf(topic))
			if err != nil {
				return err
			}
			cfg := s.CachedInfo().Config
			cfg.Subjects = []string{"move.reopened"}
			_, err = js.UpdateStream(ctx, cfg)
			return err
		}))
		if e := must[moves.Extent](t)(source.Extent(ctx, topic)); !e.Served {
			t.Error("it is served again, and does not say so")
		}
	})
}

// TestNATSCopiesAnewWhatWasDamagedSince plays a copy that lost a message before it was resumed.
func TestNATSCopiesAnewWhatWasDamagedSince(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, target mover) {
		const topic = "/move/damaged"
		ctx := bound(t)
		do(t, source.Serve(ctx, topic, nil))
		do(t, source.with(func(ctx context.Context, js jetstream.JetStream) error {
			publish(t, ctx, js, 3, func(int) *client.Msg { return &client.Msg{Subject: "move.damaged", Data: []byte("x")} })
			return nil
		}))
		sealed := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", true))
		must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
		do(t, target.with(func(ctx context.Context, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, streamOf(topic))
			if err != nil {
				return err
			}
			return s.DeleteMsg(ctx, 1)
		}))
		if _, err := target.Resume(ctx, topic, "m1", nil, &sealed); !errors.Is(err, brokerapi.ErrRefused) {
			t.Errorf("resumed without its first message: %v", err)
		}
		e := must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
		if err := sealed.Fits(&e, "there"); err != nil {
			t.Error(err)
		}
		must[moves.Extent](t)(target.Resume(ctx, topic, "m1", nil, &sealed))
	})
}
