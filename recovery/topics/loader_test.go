package topics

import (
	"strings"
	"testing"
	"time"
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
				w.SetOrders(attached)
				w.SetAssigned(1, true, all, nil)
				w.after(2 * time.Second) // 2,000 × 2 ms ÷ 3 free workers = 1.3 s
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
				if p := w.Snapshot(); p.Failed != 0 || p.LastError != "" {
					t.Errorf("after it loaded: %+v, want no error left", p)
				}
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
		w.SetOrders(attached)
		w.SetAssigned(1, true, bad, nil)
		w.after(20 * time.Minute)
		w.SetAssigned(1, false, []string{"/n/good"}, nil)
		w.after(time.Second)
		w.wantServed("/n/good")
	})
}

func TestRetriesBackOffToThirtySeconds(t *testing.T) {
	b := newFakeBroker()
	b.loadErr["/n/a"] = errRefused
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, []string{"/n/a"}, nil)
		w.after(10 * time.Minute)
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
		if n := strings.Count(w.log.String(), "a topic failed"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
	})
}

func TestNoMoreCallsAtATimeThanTheConcurrency(t *testing.T) {
	b := newFakeBroker()
	b.latency = 10 * time.Millisecond
	inWorld(t, testSettings, b, func(w *world) {
		w.SetOrders(attached)
		w.SetAssigned(1, true, names("t", 100), nil)
		w.after(300 * time.Millisecond) // 100 × 10 ms ÷ 4, and the listing
		if p := w.Snapshot(); p.Served != 100 || b.maxFlying != 4 {
			t.Errorf("served %d with at most %d calls at a time; want 100 and 4", p.Served, b.maxFlying)
		}
	})
}
