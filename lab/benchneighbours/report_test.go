package main

import (
	"errors"
	"io"
	"testing"
	"time"

	"holdfast/standstill"
)

func TestALostLeaseAndSlowProofsFail(t *testing.T) {
	p := plan{sidecars: 10, length: time.Minute, away: 20 * time.Second, limit: time.Second}
	proofs := func(fast, slow int) (all []proof) {
		for i := range fast + slow {
			took := 10 * time.Millisecond
			if i >= fast {
				took = 2 * time.Second
			}
			all = append(all, proof{time.Now(), took})
		}
		return all
	}
	for _, c := range []struct {
		name string
		steady
		holds bool
	}{
		{"all is well", steady{proofs: proofs(1000, 0)}, true},
		{"one in a hundred and one is slow", steady{proofs: proofs(1000, 10)}, true},
		{"one in ninety is slow", steady{proofs: proofs(890, 10)}, false},
		{"a lease is lost", steady{proofs: proofs(1000, 0), lost: 1}, false},
		{"nothing is renewed", steady{}, false},
	} {
		if err := c.report(io.Discard, p); (err == nil) != c.holds || errors.Is(err, standstill.ErrUnjudged) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		name  string
		away  time.Duration
		lost  int
		holds bool
	}{
		{"a lease survives a short outage", 20 * time.Second, 0, true},
		{"it does not", 20 * time.Second, 1, false},
		{"it need not survive a long one", time.Minute, 1, true},
	} {
		p.away = c.away
		if err := (back{lost: c.lost}).report(io.Discard, p); (err == nil) != c.holds {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
