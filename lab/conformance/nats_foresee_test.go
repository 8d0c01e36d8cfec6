package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// TestNATSForeseesWhatWouldFailOnceATopicIsSealed keeps topics from being withdrawn in vain, and from being
// handed over to a server that cannot serve them.
func TestNATSForeseesWhatWouldFailOnceATopicIsSealed(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, target mover) {
		const topic = "/move/foreseen"
		ctx := bound(t)
		if err := target.Accept(ctx, topic, nil, moves.Extent{}, source.Peer()); err != nil {
			t.Errorf("with nothing in the way: %v", err)
		}
		wantRefused := func(what string, err error, words string) {
			t.Helper()
			if !errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v", what, err)
			}
		}
		wantRefused("the source advertises the target's address", target.Accept(ctx, topic, nil, moves.Extent{}, target.Peer()), "--connect-url")
		nobody := brokerapi.Peer{ID: "n9", URL: "nats://127.0.0.1:1"}
		if err := target.Accept(ctx, topic, nil, moves.Extent{}, nobody); err == nil {
			t.Error("a source that nobody reaches is fine")
		}
		if err := target.with(func(ctx context.Context, js jetstream.JetStream) error {
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ALL", Subjects: []string{"move.>"}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		wantRefused("another stream takes its messages", target.Accept(ctx, topic, nil, moves.Extent{}, source.Peer()), "ALL takes messages")
		if err := target.Accept(ctx, topic, []byte(`{"subjects":["other"]}`), moves.Extent{}, source.Peer()); err != nil {
			t.Errorf("with other subjects in its record: %v", err)
		}
	})
}

// TestNATSSaysOfASealedStreamThatItIsServedAgain is what a handover looks at: whoever publishes to one that
// somebody else has put back would lose the message.
func TestNATSSaysOfASealedStreamThatItIsServedAgain(t *testing.T) {
	t.Parallel()
	betweenServers(t, func(t *testing.T, source, _ mover) {
		const topic = "/move/reopened"
		ctx := bound(t)
		if err := source.Serve(ctx, topic, nil); err != nil {
			t.Fatal(err)
		}
		if e := must[moves.Extent](t)(source.Extent(ctx, topic)); !e.Served {
			t.Error("it is served, and does not say so")
		}
		if e := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", true)); e.Served {
			t.Error("sealed, it is served")
		}
		if err := source.with(func(ctx context.Context, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, streamOf(topic))
			if err != nil {
				return err
			}
			cfg := s.CachedInfo().Config
			cfg.Subjects = []string{"move.reopened"}
			_, err = js.UpdateStream(ctx, cfg)
			return err
		}); err != nil {
			t.Fatal(err)
		}
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
		if err := source.Serve(ctx, topic, nil); err != nil {
			t.Fatal(err)
		}
		if err := source.with(func(ctx context.Context, js jetstream.JetStream) error {
			publish(t, ctx, js, 3, func(int) *client.Msg { return &client.Msg{Subject: "move.damaged", Data: []byte("x")} })
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		sealed := must[moves.Extent](t)(source.Seal(ctx, topic, "m1", true))
		must[moves.Extent](t)(target.Copy(ctx, topic, "m1", source.Peer(), sealed, free))
		if err := target.with(func(ctx context.Context, js jetstream.JetStream) error {
			s, err := js.Stream(ctx, streamOf(topic))
			if err != nil {
				return err
			}
			return s.DeleteMsg(ctx, 1)
		}); err != nil {
			t.Fatal(err)
		}
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
