package pulsar

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
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
	for name, row := range map[string]struct {
		before  func(s *sessions, starts func(ms int64), note func())
		of      string
		revoked []int64
	}{
		"it was seen":                 {func(*sessions, func(int64), func()) {}, first, []int64{7}},
		"of another process":          {func(*sessions, func(int64), func()) {}, second, nil},
		"the next one was seen since": {func(s *sessions, starts func(int64), note func()) { starts(2000); s.lease = 8; note() }, first, nil},
		"the next one":                {func(s *sessions, starts func(int64), note func()) { starts(2000); s.lease = 8; note() }, second, []int64{8}},
		"a look failed since": {func(s *sessions, _ func(int64), note func()) {
			s.err = errors.New("away")
			note()
			s.err = nil
		}, first, []int64{7}},
		"a session of its own followed":     {func(s *sessions, _ func(int64), note func()) { s.lease = 9; note() }, first, []int64{9}},
		"its registration has gone":         {func(s *sessions, _ func(int64), note func()) { s.lease = 0; note() }, first, nil},
		"it has ended":                      {func(s *sessions, starts func(int64), note func()) { starts(0); s.lease = 8; note() }, first, []int64{7}},
		"its metrics do not tell who it is": {func(s *sessions, starts func(int64), note func()) { starts(-1); s.lease = 8; note() }, first, []int64{7}},
		"another process came during that look": {func(s *sessions, starts func(int64), note func()) {
			s.lease, s.during = 8, func() { starts(2000) }
			note()
		}, first, []int64{7}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &restarting{t: t}
			p.starts(1000)
			s := &sessions{key: registrations + "b1:8080", lease: 7}
			b := p.driver(func(c *Config) { c.Advertised, c.Store = "b1:8080", s })
			_ = b.works(t.Context())
			row.before(s, p.starts, func() { _ = b.works(t.Context()) })
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
	b := &Broker{cfg: Config{Store: s, Logger: slog.New(slog.DiscardHandler)}}
	b.session.Store(&session{"p", 7})
	if err := b.Release(t.Context(), "p"); err == nil {
		t.Error("no error")
	}
	s.err = nil
	if err := b.Release(t.Context(), "p"); err != nil || len(s.revoked) != 2 {
		t.Errorf("%v, revoked %v", err, s.revoked)
	}
}
