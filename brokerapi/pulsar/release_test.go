package pulsar

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"holdfast/brokerapi/rest"
)

// sessions is an etcd in which one broker is registered.
type sessions struct {
	key     string
	lease   int64
	err     error
	during  func() // a look
	revoked []int64
}

func (s *sessions) LeaseOf(_ context.Context, key string) (int64, error) {
	if s.during != nil {
		s.during()
	}
	if key != s.key {
		return 0, s.err
	}
	return s.lease, s.err
}

func (s *sessions) Revoke(_ context.Context, lease int64) error {
	s.revoked = append(s.revoked, lease)
	return s.err
}

func TestOnlyTheSessionThatWasSeenOfAProcessIsEndedForIt(t *testing.T) {
	const first, second = "started-1000", "started-2000"
	answers := func(b *Broker, number int, ms int64) { // a process, over that connection
		b.held.number, b.held.up = number, true
		b.started = map[int]time.Time{number: time.UnixMilli(ms)}
	}
	for name, row := range map[string]struct {
		before  func(b *Broker, s *sessions)
		of      string
		revoked []int64
	}{
		"it was seen":                   {func(*Broker, *sessions) {}, first, []int64{7}},
		"of another process":            {func(*Broker, *sessions) {}, second, nil},
		"the next one was seen since":   {func(b *Broker, s *sessions) { answers(b, 2, 2000); s.lease = 8; b.noteSession(t.Context()) }, first, nil},
		"the next one":                  {func(b *Broker, s *sessions) { answers(b, 2, 2000); s.lease = 8; b.noteSession(t.Context()) }, second, []int64{8}},
		"a look failed since":           {func(b *Broker, s *sessions) { s.err = errors.New("away"); b.noteSession(t.Context()); s.err = nil }, first, []int64{7}},
		"a session of its own followed": {func(b *Broker, s *sessions) { s.lease = 9; b.noteSession(t.Context()) }, first, []int64{9}},
		"its registration has gone":     {func(b *Broker, s *sessions) { s.lease = 0; b.noteSession(t.Context()) }, first, nil},
		"no connection is held":         {func(b *Broker, s *sessions) { b.held.up, s.lease = false, 8; b.noteSession(t.Context()) }, first, []int64{7}},
		"another process came during that look": {func(b *Broker, s *sessions) {
			s.lease, s.during = 8, func() { answers(b, 2, 2000) }
			b.noteSession(t.Context())
		}, first, []int64{7}},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := rest.New(rest.Config{URL: "http://127.0.0.1:1"})
			if err != nil {
				t.Fatal(err)
			}
			s := &sessions{key: registrations + "b1:8080", lease: 7}
			b := &Broker{cfg: Config{Store: s}, self: "b1:8080", rest: client, log: slog.New(slog.DiscardHandler)}
			answers(b, 1, 1000)
			b.noteSession(t.Context())
			row.before(b, s)
			for range 2 { // it may be repeated
				if err := b.Release(t.Context(), row.of); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(s.revoked, row.revoked) {
				t.Errorf("revoked %v, want %v", s.revoked, row.revoked)
			}
		})
	}
}

func TestASessionThatCouldNotBeEndedIsEndedAtTheNextTry(t *testing.T) {
	s := &sessions{err: errors.New("away")}
	b := &Broker{cfg: Config{Store: s}, log: slog.New(slog.DiscardHandler), session: session{"p", 7}}
	if err := b.Release(t.Context(), "p"); err == nil {
		t.Error("no error")
	}
	s.err = nil
	if err := b.Release(t.Context(), "p"); err != nil || len(s.revoked) != 2 {
		t.Errorf("%v, revoked %v", err, s.revoked)
	}
}
