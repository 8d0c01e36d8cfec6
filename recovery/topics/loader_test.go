package topics

import (
	"testing"
	"time"

	"holdfast/recovery"
)

func TestATopicThatCannotLoadNeverBlocksTheOthers(t *testing.T) {
	for _, row := range []struct {
		name string
		bad  func(b *fakeBroker, topic string)
		want string
	}{
		{"refused", func(b *fakeBroker, topic string) { b.loadErr[topic] = errRefused }, "refused by the broker"},
		{"hangs", func(b *fakeBroker, topic string) { b.hangs[topic] = true }, "no answer to load within 30s"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newFakeBroker()
			b.latency = 2 * time.Millisecond
			all := names("t", 2_000)
			row.bad(b, all[0])
			inWorld(t, testSettings, b, func(w *world) {
				w.begin(2*time.Second, all...) // 2,000 × 2 ms ÷ 3 free workers = 1.3 s
				if p := w.Snapshot(); p.Served != 1_999 || p.Missing != 1 {
					t.Fatalf("progress %+v; want all but one served", p)
				}
				w.after(2 * time.Minute)
				p := w.Snapshot()
				if first := w.Topics()[0]; p.Failed != 1 || first.Topic != all[0] || first.Error != row.want {
					t.Errorf("failed %d, first %+v; want the one", p.Failed, first)
				}
				if p.GateOpenedBy != GateLoadTimeout {
					t.Errorf("gate opened by %q, want %q", p.GateOpenedBy, GateLoadTimeout)
				}
				b.set(func() { clear(b.loadErr); clear(b.hangs) })
				w.after(70 * time.Second)
				w.wantServed(all...)
				w.want("2000 assigned, 2000 served, load-timeout")
			})
		})
	}
}

func TestTopicsThatHangForEverLeaveRoomForNewOnes(t *testing.T) {
	b := newFakeBroker()
	bad := names("bad", 40)
	for _, name := range bad {
		b.hangs[name] = true
	}
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(20*time.Minute, append(bad, "/n/stray")...)
		w.SetAssigned(1, false, []string{"/n/good"}, []string{"/n/stray"})
		w.after(recovery.SettleTime + planSpacing)
		w.wantServed("/n/good")
		if b.flying != 2 {
			t.Errorf("%d retries at a time, want half of the concurrency", b.flying)
		}
	})
}

func TestRetriesBackOffToThirtySeconds(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/a"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.begin(10*time.Minute, "/n/a")
		times := b.loadTimes["/n/a"]
		nominal := initialBackoff
		for i := 1; i < len(times); i++ {
			gap := times[i].Sub(times[i-1])
			if gap < nominal*8/10 || gap > min(maxCallBackoff, nominal*12/10)+time.Millisecond {
				t.Errorf("wait %d was %s, want about %s", i, gap, nominal)
			}
			nominal = min(2*nominal, maxCallBackoff)
		}
		if len(times) < 20 {
			t.Errorf("only %d attempts in ten minutes", len(times))
		}
		w.wantLog("a topic failed", 1)
	})
}

func TestNoMoreCallsAtATimeThanTheConcurrency(t *testing.T) {
	b := newFakeBroker()
	b.latency = 10 * time.Millisecond
	inWorld(t, testSettings, b, func(w *world) {
		w.rec.slow = 10 * time.Millisecond
		w.begin(15*time.Millisecond, names("t", 1000)...)
		w.Kick()
		w.after(235 * time.Millisecond) // about 92 × 10 ms ÷ 4, after the listing and the records
		w.rec.mu.Lock()
		calls := w.rec.calls
		w.rec.mu.Unlock()
		if calls != 1 {
			t.Errorf("records were read %d times, with %d left", calls, recordBatch-100)
		}
		w.after(2500 * time.Millisecond)
		if p := w.Snapshot(); p.Served != 1000 || b.maxFlying != 5 {
			t.Errorf("served %d with at most %d calls at a time; want 1000, and 4 beside a listing", p.Served, b.maxFlying)
		}
	})
}
