package recovery

import (
	"testing"
	"time"
)

func TestALeaseThatFallsAsTimePassesIsNotRenewed(t *testing.T) {
	const interval = 4 * time.Second
	look := func(at, left time.Duration, term uint64) LeaseLook {
		return LeaseLook{Sent: at, Answered: at + 100*time.Millisecond, Left: left, Term: term}
	}
	first := look(0, 30*time.Second, 7)
	for _, c := range []struct {
		name           string
		second         LeaseLook
		renewed, known bool
	}{
		{"it fell by as much", look(9*time.Second, 21*time.Second, 7), false, true},
		{"it fell by as much, rounded", look(9*time.Second, 22*time.Second, 7), false, true},
		{"it rose", look(9*time.Second, 31*time.Second, 7), true, true},
		{"it is as high", look(9*time.Second, 30*time.Second, 7), true, true},
		{"renewed a moment after the first, and about to be again", look(9*time.Second, 27*time.Second, 7), true, true},
		{"too soon", look(8*time.Second, 31*time.Second, 7), false, false},
		{"another leader", look(9*time.Second, 32*time.Second, 8), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if renewed, known := Renewed(first, c.second, interval); renewed != c.renewed || known != c.known {
				t.Errorf("renewed %t, known %t", renewed, known)
			}
		})
	}
}

// Whatever the phases and the roundings: who renews is seen to, and who does not is not.
func TestWhoRenewsIsToldFromWhoDoesNot(t *testing.T) {
	const step = 250 * time.Millisecond
	for _, ttl := range []time.Duration{5 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, 60 * time.Second} {
		interval := ttl / 8
		down := func(d time.Duration) time.Duration { return d.Truncate(time.Second) }
		for phase := time.Duration(0); phase < interval; phase += step {
			for late := time.Duration(0); late < interval; late += step {
				at := LooksApart(interval) + late
				living := func(t time.Duration) LeaseLook {
					return LeaseLook{Sent: t, Answered: t, Left: down(ttl - (t+phase)%interval), Term: 1}
				}
				dead := func(t time.Duration) LeaseLook {
					return LeaseLook{Sent: t, Answered: t, Left: down(max(0, ttl-phase-t)), Term: 1}
				}
				if renewed, known := Renewed(living(0), living(at), interval); !renewed || !known {
					t.Errorf("TTL %v, phase %v, after %v: who renews is taken for dead", ttl, phase, at)
				}
				if ttl-phase < at {
					continue // it has ended, and etcd says so
				}
				if renewed, known := Renewed(dead(0), dead(at), interval); renewed || !known {
					t.Errorf("TTL %v, phase %v, after %v: who is dead is taken for alive", ttl, phase, at)
				}
			}
		}
	}
}
