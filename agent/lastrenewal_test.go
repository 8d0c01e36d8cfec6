package agent

import (
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/agent/process"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

var discard = slog.New(slog.DiscardHandler)

// noteDisk keeps what is written to it.
type noteDisk struct {
	mu      sync.Mutex
	written []string
}

func (d *noteDisk) put(p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.written = append(d.written, string(p))
	return nil
}

func TestEachConfirmedRenewalIsNotedAndSoIsALoss(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		disk := &noteDisk{}
		l.inLoop(func() {
			l.renewals = note.To(disk.put, "b", discard)
		})
		go l.renewals.Run(l.life0)
		l.until(l.age() + time.Minute)
		v := l.keeper.View()
		want := note.Renewal{LeaseID: v.Grant.LeaseID, SentAt: v.Validity.SentAt, TTL: v.Validity.TTL, Ahead: l.world.Clocks().Ahead(), Revision: v.Grant.Revision}
		if n := len(disk.written); n < 10 || disk.written[n-1] != string(want.Encode("b")) {
			t.Errorf("%d notes, the last %q", n, disk.written[n-1])
		}
		l.set(func() { l.lost, l.storeErr = true, true })
		l.becomes(recovery.Detached, l.age()+time.Minute)
		l.until(l.age() + time.Millisecond)
		if got := disk.written[len(disk.written)-1]; got != string(note.Over.Encode("b")) {
			t.Errorf("after the loss: %q", got)
		}
	})
}

// The note would say that no clock has jumped since.
func TestARenewalThatWasSentBeforeAPauseIsNotNotedAfterIt(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		disk := &noteDisk{}
		l.inLoop(func() {
			l.renewals = note.To(disk.put, "b", discard)
		})
		go l.renewals.Run(l.life0)
		noted := func() note.Renewal {
			r, _, err := note.Decode([]byte(disk.written[len(disk.written)-1]), "b", l.world.Clocks())
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		l.until(l.age() + 10*time.Second)
		l.set(func() { l.slow = 1500 * time.Millisecond })
		for l.asks() == l.answers() { // until one is on its way
			l.until(l.age() + 10*time.Millisecond)
		}
		before, sent := noted(), l.keeper.View().Validity.SentAt
		l.paused(20 * time.Second)
		for l.keeper.View().Validity.SentAt == sent {
			l.until(l.age() + 10*time.Millisecond)
		}
		if r := noted(); r != before || r.Lost(l.world.Clocks()) != 20*time.Second {
			t.Errorf("noted %+v after %+v", r, before)
		}
		l.until(l.age() + 5*time.Second)
		if r := noted(); r.SentAt == before.SentAt || r.Lost(l.world.Clocks()) != 0 {
			t.Errorf("a renewal later: %+v", r)
		}
	})
}

// The sidecar before this one registered the broker's process, its last renewal was sent so
// long ago, and etcd is silent from the start.
func TestABrokerLeftBehindIsFencedAtTheFencePointOfItsOwnLease(t *testing.T) {
	const never = time.Hour
	whole := natsDefaults().Effective().LeaseTTL - natsDefaults().Effective().LeaseDetachMargin
	attempt := natsDefaults().Effective().Timing().AttemptTimeout()
	stood := func(d time.Duration) func(l *sidecarLife) {
		return func(l *sidecarLife) {
			now := l.world.Clocks()
			l.recall(note.Renewal{LeaseID: 1, SentAt: l.former.SentAt, TTL: l.former.TTL, Ahead: now.Ahead() - d}, now)
		}
	}
	for _, row := range []struct {
		name   string
		sent   time.Duration // before this sidecar began; 0: there is no note
		change func(l *sidecarLife)
		want   time.Duration // after the sidecar began
	}{
		{"a moment ago", time.Millisecond, nil, whole - time.Millisecond},
		{"half of it", whole / 2, nil, whole / 2},
		{"long ago", time.Hour, nil, 0},
		{"with a longer TTL than we would ask for", time.Second, func(l *sidecarLife) { l.former.TTL *= 2 }, whole},
		{"with a shorter one", time.Second, func(l *sidecarLife) { l.former.TTL -= 5 * time.Second }, whole - 6*time.Second},
		{"a moment ago, and the host stood for longer than the lease: after an attempt", time.Millisecond, stood(time.Hour), attempt},
		{"a moment ago, and the host stood for a part of it", time.Millisecond, stood(whole / 2), whole/2 - time.Millisecond},
		{"a moment ago, the host stood for longer than the lease, and etcd answers", time.Millisecond, func(l *sidecarLife) { l.away = false; stood(time.Hour)(l) }, never},
		{"half of it, and the wall clock was set back: after an attempt", whole / 2, stood(-time.Hour), attempt},
		{"nearly all of it, and the wall clock was set back", whole - time.Second, stood(-time.Hour), time.Second},
		{"not known: when etcd has failed to answer", 0, nil, time.Second},
		{"of another process of the broker: when etcd has failed to answer", time.Hour, func(l *sidecarLife) { l.process = 2 }, time.Second},
		{"not known, and the registration was given up", 0, func(l *sidecarLife) { l.memory.Released = true }, time.Second},
		{"a moment ago, and the registration was given up", time.Millisecond, func(l *sidecarLife) { l.memory.Released = true }, time.Second},
		{"given up, and etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.memory.Released = false, true }, never},
		{"long ago, and the state file is lost: when etcd has failed to answer", time.Hour, func(l *sidecarLife) { l.memory = memory{} }, time.Second},
		{"not known, and it was never registered", 0, func(l *sidecarLife) { l.memory = memory{} }, never},
		{"long ago, and etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.process = false, 2 }, never},
		{"not known, and the registration waits though etcd answers", 0, func(l *sidecarLife) { l.away, l.waits = false, true }, whole},
		{"of another process of the broker, whose registration waits though etcd answers", time.Hour, func(l *sidecarLife) { l.away, l.waits, l.process = false, true, 2 }, whole + natsDefaults().Effective().LeaseTTL},
	} {
		t.Run(row.name, func(t *testing.T) {
			past := func(l *sidecarLife) {
				l.away, l.memory.Epoch, l.memory.Instance = true, 7, "process-1"
				if row.sent > 0 {
					l.former = lease.Validity{SentAt: l.begun.Add(-row.sent), TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
				}
				if row.change != nil {
					row.change(l)
				}
			}
			lifeFromTheStart(t, stoppable, past, func(l *sidecarLife) {
				// The first health check, of a broker that answers, and the first question to etcd.
				const slack = 1500 * time.Millisecond
				if row.want > slack {
					l.until(row.want - time.Nanosecond)
					if got := l.why("fence"); got != "" {
						t.Errorf("while the lease may live: %s", got)
					}
				}
				if row.want == never {
					l.until(time.Minute)
				} else {
					l.until(row.want + slack)
				}
				if got := l.why("fence"); (got == "quiesced:") == (row.want == never) || row.want == never && got != "" {
					t.Errorf("%v after the sidecar began: %q", l.age(), got)
				}
			})
		})
	}
}

// It does not answer, so nobody knows who it is; but the process that was registered lives.
func TestABrokerLeftBehindThatHangsIsStoppedAtTheFencePoint(t *testing.T) {
	past := func(l *sidecarLife) {
		l.away, l.frozen, l.memory.Epoch, l.memory.Instance = true, true, 7, "process-1"
		l.former = lease.Validity{SentAt: l.begun.Add(-time.Hour), TTL: l.cfg.LeaseTTL, Margin: l.cfg.LeaseDetachMargin}
		self, err := process.TargetOf(os.Getpid())
		if err != nil {
			l.t.Fatal(err)
		}
		l.served = self
	}
	lifeFromTheStart(t, stoppable, past, func(l *sidecarLife) {
		l.until(recovery.LateQuiesce + recovery.LateStop)
		if len(l.stops) != 1 || !l.ended {
			t.Errorf("stopped at %v", l.stops)
		}
	})
}

func TestTheLaterOfTwoConfirmationsCounts(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	m := registration.Past{ConfirmedAt: 30, Deadline: noon}
	m.Confirm(note.Confirmed{})
	m.Confirm(note.Confirmed{Revision: 29, Deadline: noon.Add(-1)})
	if m.ConfirmedAt != 30 || !m.Deadline.Equal(noon) {
		t.Errorf("%+v: an older one is believed", m)
	}
	m.Confirm(note.Confirmed{Revision: 31, Deadline: noon.Add(1)})
	if m.ConfirmedAt != 31 || !m.Deadline.Equal(noon.Add(1)) {
		t.Errorf("%+v: a younger one is not", m)
	}
}
