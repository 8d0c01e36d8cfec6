package recovery

import (
	"testing"
	"time"
)

// healthy is a broker long after everything went well.
func healthy(change func(f *AttachFacts)) AttachFacts {
	f := AttachFacts{Now: 100 * time.Second, Held: true, FencePoint: 120 * time.Second, Enabled: true,
		EverAttached: true, HealthySince: 10 * time.Second, RecoverWindow: 2 * time.Second, Verified: true}
	if change != nil {
		change(&f)
	}
	return f
}

func TestEveryAttachmentMeetsEveryEvent(t *testing.T) {
	type want struct {
		to  Attachment
		why Why
	}
	same := func(a Attachment) want { return want{a, WhySame} }
	const at, deg, det = Attached, Degraded, Detached
	for _, c := range []struct {
		event                        string
		f                            AttachFacts
		detached, attached, degraded want
	}{
		{"nothing happens", healthy(nil), want{at, WhyRecoverOver}, same(at), want{at, WhyRecovered}},
		{"never attached before", healthy(func(f *AttachFacts) { f.EverAttached, f.Verified, f.HealthySince = false, false, f.Now }), want{at, WhyRegistered}, same(at), want{at, WhyRecovered}},
		{"renewals fail", healthy(func(f *AttachFacts) { f.Failing = true }), same(det), want{deg, WhyFailing}, same(deg)},
		{"renewals fail, a nanosecond before the fence point", healthy(func(f *AttachFacts) { f.Failing, f.Now = true, f.FencePoint-1 }), same(det), want{deg, WhyFailing}, same(deg)},
		{"renewals fail, at the fence point", healthy(func(f *AttachFacts) { f.Failing, f.Now = true, f.FencePoint }), same(det), want{det, WhyFencePoint}, want{det, WhyFencePoint}},
		{"a wake-up long after the fence point", healthy(func(f *AttachFacts) { f.Now = time.Hour }), same(det), want{det, WhyFencePoint}, want{det, WhyFencePoint}},
		{"the lease is lost", healthy(func(f *AttachFacts) { f.Held, f.FencePoint = false, 0 }), same(det), want{det, WhyLeaseLost}, want{det, WhyLeaseLost}},
		{"its process must go", healthy(func(f *AttachFacts) { f.MustGo = true }), same(det), want{det, WhyMustGo}, want{det, WhyMustGo}},
		{"its process must go, and nothing was attached yet", healthy(func(f *AttachFacts) { f.MustGo, f.EverAttached = true, false }), same(det), want{det, WhyMustGo}, want{det, WhyMustGo}},
		{"the broker is down", healthy(func(f *AttachFacts) { f.Paused = true }), same(det), want{deg, WhyBrokerDown}, same(deg)},
		{"the broker is down at the fence point", healthy(func(f *AttachFacts) { f.Paused, f.Now = true, f.FencePoint }), same(det), want{det, WhyBrokerDown}, want{det, WhyBrokerDown}},
		{"another incarnation", healthy(func(f *AttachFacts) { f.Contested, f.Held = true, false }), same(det), want{det, WhyConflict}, want{det, WhyConflict}},
		{"another incarnation, our lease holds", healthy(func(f *AttachFacts) { f.Contested = true }), same(det), want{det, WhyConflict}, want{det, WhyConflict}},
		{"the recover window is not over", healthy(func(f *AttachFacts) { f.HealthySince = f.Now - 2*time.Second + 1 }), same(det), same(at), want{at, WhyRecovered}},
		{"the recover window is over", healthy(func(f *AttachFacts) { f.HealthySince = f.Now - 2*time.Second }), want{at, WhyRecoverOver}, same(at), want{at, WhyRecovered}},
		{"no recover window", healthy(func(f *AttachFacts) { f.HealthySince, f.RecoverWindow = f.Now, 0 }), want{at, WhyRecoverOver}, same(at), want{at, WhyRecovered}},
		{"healthy, and etcd was not asked", healthy(func(f *AttachFacts) { f.Verified = false }), same(det), same(at), want{at, WhyRecovered}},
		{"first registration, fence point passed", healthy(func(f *AttachFacts) { f.EverAttached, f.Now = false, f.FencePoint }), same(det), want{det, WhyFencePoint}, want{det, WhyFencePoint}},

		{"healthy, and held back", healthy(func(f *AttachFacts) { f.HeldBack = true }), same(det), same(at), want{at, WhyRecovered}},
		{"first registration, and held back", healthy(func(f *AttachFacts) { f.HeldBack, f.EverAttached = true, false }), same(det), same(at), want{at, WhyRecovered}},

		{"--detach=false: at the fence point", healthy(func(f *AttachFacts) { f.Enabled, f.Failing, f.Now = false, true, f.FencePoint }), same(det), want{deg, WhyFailing}, same(deg)},
		{"--detach=false: the lease is lost", healthy(func(f *AttachFacts) { f.Enabled, f.Held, f.FencePoint = false, false, 0 }), same(det), want{deg, WhyFailing}, same(deg)},
		{"--detach=false: the broker is down", healthy(func(f *AttachFacts) { f.Enabled, f.Paused, f.Now = false, true, time.Hour }), same(det), want{deg, WhyBrokerDown}, same(deg)},
		{"--detach=false: all is well", healthy(func(f *AttachFacts) { f.Enabled = false }), want{at, WhyRecoverOver}, same(at), want{at, WhyRecovered}},
	} {
		t.Run(c.event, func(t *testing.T) {
			for from, w := range map[Attachment]want{Detached: c.detached, Attached: c.attached, Degraded: c.degraded} {
				if to, why := NextAttachment(from, c.f); to != w.to || why != w.why {
					t.Errorf("%s: %s %q, want %s %q", from, to, why, w.to, w.why)
				}
			}
		})
	}
}

// Detachment comes first, and nobody comes back unhealthy: over every combination.
func TestNoCombinationServesWithoutALease(t *testing.T) {
	for bits := range 512 {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		f := AttachFacts{Held: bit(0), Failing: bit(1), Paused: bit(2), Contested: bit(3), Enabled: true,
			EverAttached: bit(4), Verified: bit(5), Now: 100 * time.Second, FencePoint: 120 * time.Second, RecoverWindow: 2 * time.Second}
		if bit(6) {
			f.Now = f.FencePoint
		}
		if bit(7) {
			f.HealthySince = f.Now
		}
		f.Enabled = !bit(8)
		for _, from := range Attachments {
			to, why := NextAttachment(from, f)
			lost := !f.Held || f.Contested || f.Now >= f.FencePoint
			if f.Enabled && lost && to != Detached {
				t.Errorf("%s from %s: %+v", to, from, f)
			}
			if from != Attached && to == Attached && (lost || f.Failing || f.Paused) {
				t.Errorf("attached from %s: %+v", from, f)
			}
			if from == Detached && to == Degraded {
				t.Errorf("degraded from detached: %+v", f)
			}
			if (to == from) != (why == WhySame) {
				t.Errorf("%s to %s because %q", from, to, why)
			}
			if again, _ := NextAttachment(to, f); to != from && to == Detached && again == Attached && lost {
				t.Errorf("flaps: %+v", f)
			}
		}
	}
}

func TestEveryDetachmentHasAKnownReason(t *testing.T) {
	known := map[Why]bool{}
	for _, w := range DetachReasons {
		known[w] = true
	}
	for bits := range 16 {
		f := AttachFacts{Enabled: true, Held: bits&1 == 1, Paused: bits&2 == 2, Contested: bits&4 == 4, FencePoint: time.Second}
		if bits&8 == 8 {
			f.Now = time.Second
		}
		for _, from := range []Attachment{Attached, Degraded} {
			if to, why := NextAttachment(from, f); to == Detached && !known[why] {
				t.Errorf("%q is not among DetachReasons", why)
			}
		}
	}
}
