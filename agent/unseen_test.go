package agent

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// portRefuses is what the held connection and its loss say of a broker that has ended.
func (l *sidecarLife) portRefuses() {
	l.onHeld(probes.HeldEnded)
	l.onHeld(probes.HeldGone)
	l.breaks.Add(1)
	l.lostLine <- struct{}{}
}

func TestABrokerThatIsNotThereIsNotTakenForOneThatWasNotSeen(t *testing.T) {
	unresolved := errors.Join(brokerapi.ErrUnseen, &net.DNSError{Err: "no such host", Name: "broker", IsNotFound: true})
	for name, ends := range map[string]func(l *sidecarLife){
		"its address is silent": func(l *sidecarLife) { l.onHeld(probes.HeldEnded); l.onHeld(probes.HeldAway) },
		"its port refuses":      (*sidecarLife).portRefuses,
	} {
		t.Run(name, func(t *testing.T) {
			inLife(t, nil, func(l *sidecarLife) {
				l.onHeld(probes.HeldBegun)
				l.set(func() { l.replies = unresolved })
				l.until(l.age() + time.Minute)
				if v := l.health.Snapshot().At(time.Now()); v != probes.Up || l.state() != recovery.Attached || len(l.notReady()) > 0 {
					t.Errorf("while its port accepts: %v, %s, %v", v, l.state(), l.notReady())
				}
				ends(l)
				l.until(l.age() + 4*time.Second)
				if v := l.health.Snapshot().At(time.Now()); v != probes.Down {
					t.Errorf("4 s after its end: %v", v)
				}
				l.becomes(recovery.Detached, l.age()+l.cfg.LeaseTTL)
			})
		})
	}
}

func TestABrokerThatRefusesUsAfterItsRestartKeepsItsRegistration(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.onHeld(probes.HeldBegun)
		l.set(func() { l.ended = true })
		l.portRefuses()
		l.until(l.age() + 5*time.Second)
		if v := l.health.Snapshot().At(time.Now()); v != probes.Down {
			t.Fatalf("%v while it is away", v)
		}
		rests := l.asks()
		l.until(l.age() + 5*time.Second)
		if n := l.asks() - rests; n > 0 {
			t.Errorf("renewed %d times while it is away", n)
		}
		l.set(func() { l.replies = fmt.Errorf("full: %w", brokerapi.ErrUnseen) })
		l.start()
		l.onHeld(probes.HeldBegun)
		l.until(l.age() + 10*time.Minute)
		if v := l.health.Snapshot().At(time.Now()); v != probes.Unknown || l.state() != recovery.Attached || len(l.stops) > 0 || len(l.notReady()) == 0 {
			t.Errorf("full: %v, %s, stopped at %v, %v", v, l.state(), l.stops, l.notReady())
		}
		l.set(func() { l.replies = nil })
		l.until(l.age() + 10*time.Second)
		if causes := l.notReady(); len(causes) > 0 {
			t.Errorf("with room for us: %v", causes)
		}
	})
}
