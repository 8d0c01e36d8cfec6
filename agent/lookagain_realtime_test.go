package agent

import (
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/process"
	"holdfast/recovery"
)

// A broker that crashed is started again at once, and replays its journal for a minute
// before it answers. Etcd is well.
func TestABrokerThatTakesLongToStartIsLeftAloneByTheGuard(t *testing.T) {
	watch := watchThatSaw(t)
	for _, interval := range []time.Duration{100 * time.Millisecond, time.Second} {
		inLife(t, func(c *config.Config) { stoppable(c); c.HealthInterval = interval }, func(l *sidecarLife) {
			l.set(func() { l.ended = true })
			l.until(l.age() + 5*time.Second)
			l.inLoop(func() {
				l.served = process.Target{Pid: os.Getpid(), StartTicks: 1} // somebody else's pid by now
				l.agent.process = watch
			})
			l.becomes(recovery.Detached, time.Hour)
			l.until(l.deadline())
			for range 100 {
				l.until(l.age() + 590*time.Millisecond)
				if left := l.moment.Sub(l.clock()); left < time.Second || left > 3*time.Second {
					t.Errorf("the guard acts in %v", left)
					return
				}
			}
			l.inLoop(func() { l.agent.process = nil })
			l.start()
			l.becomes(recovery.Attached, l.age()+time.Minute)
			if words := l.said(); !strings.Contains(words[strings.LastIndex(words, "postpone"):], "arm ") || len(l.stops) > 0 {
				t.Errorf("%s, stopped at %v", words, l.stops)
			}
		})
	}
}
