package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"holdfast/lab/harness"
)

// fault is what is done in a run, and what must stand there for it.
type fault struct {
	name  string
	bare  bool          // the sidecar cannot stop the broker's process, and nor can a guard
	found time.Duration // within which a broker is found that starts when the key is gone; 0: none may serve
	hangs hangs         // else one etcd stands there, behind a link
	hurt  func(context.Context, *run, *outcome) error
}

// hangs says which members a sidecar knows where the leader hangs.
type hangs string

const (
	everyEndpoint hangs = "every endpoint"
	thatEndpoint  hangs = "that endpoint alone"
)

var notes sync.Map // those that were printed

// faults are all that this machine allows, for the run of that number of each.
func faults(out io.Writer, number int) (all []fault) {
	note := func(format string, args ...any) {
		text := fmt.Sprintf("Note: "+format+"\n", args...)
		if _, told := notes.LoadOrStore(text, true); !told {
			fmt.Fprint(out, text)
		}
	}
	harms := []harm{frozen, killed, starved}
	if err := canThrottle(); err != nil {
		note("no quota of the processor can be set here (%v): starved by signals only.", err)
	} else {
		harms = append(harms, throttled)
	}
	for _, h := range harms {
		all = append(all,
			fault{name: string(h) + ", etcd frozen", hurt: h.hurt(false)},
			fault{name: string(h) + ", etcd black-holed", hurt: h.hurt(true)})
	}
	if err := harness.CanHang(); err != nil {
		note("no leader is made to hang: %v.", err)
	} else {
		for _, h := range []hangs{everyEndpoint, thatEndpoint} {
			all = append(all, fault{name: "leader hangs, " + string(h), hangs: h, hurt: hang})
		}
	}
	// The pid file wakes the guard, and a look comes later. At once is before the key is gone.
	all = append(all,
		fault{name: "frozen, broker restarted at once", hurt: restartBroker(0)},
		fault{name: "frozen, broker restarted after 1 s", found: look, hurt: restartBroker(time.Second)})
	for _, bare := range []bool{false, true} {
		with := ""
		if bare {
			with = ", no process control"
		}
		all = append(all,
			fault{name: "killed and back at a tenth of the TTL" + with, bare: bare, hurt: restartOnce(number % 10)},
			fault{name: "killed and back at every tenth of the TTL" + with, bare: bare, hurt: restartAlways},
			fault{name: "subject restored by others" + with, bare: bare, hurt: hands(harness.RestoreSubject, false)},
			fault{name: "stream created by others" + with, bare: bare, hurt: hands(harness.CreateStream, false)})
	}
	return append(all, fault{name: "subject restored by others, then frozen", hurt: hands(harness.RestoreSubject, true)})
}

// hurt hurts etcd and the sidecar and measures what came of it.
func (h harm) hurt(hole bool) func(context.Context, *run, *outcome) error {
	return func(ctx context.Context, r *run, o *outcome) error {
		apart := time.Duration(r.rng.Int64N(int64(r.ttl * 2 / 3)))
		if r.rng.IntN(2) == 0 {
			apart = 0
		}
		take := r.etcd.Freeze
		if hole {
			take = r.link.Cut
		}
		from := time.Now()
		if err := take(); err != nil {
			return err
		}
		if err := harness.Wait(ctx, apart); err != nil {
			return err
		}
		if err := h.do(ctx, r.Sidecar, func(f func()) { r.undo = append(r.undo, f) }); err != nil && r.Sidecar.Running() {
			return err
		}
		// Without a guard nobody knows the deadline; then it is this one at the latest.
		latest := from.Add(r.ttl)
		r.deadline.CompareAndSwap(nil, &latest)
		for range 2 { // a starved sidecar may have renewed meanwhile
			_ = harness.Wait(ctx, time.Until(*r.deadline.Load()))
		}
		if !hole {
			if err := errors.Join(r.link.Cut(), r.etcd.Thaw()); err != nil { // back for the others only
				return err
			}
		}
		o.toDeadline.known = true
		return r.judge(ctx, o, time.Second)
	}
}

// hang has the leader hang in its disk. The lease may live on at the others.
func hang(ctx context.Context, r *run, o *outcome) error {
	if err := r.cluster.HangLeader(ctx, r.leader); err != nil {
		return err
	}
	_, err := r.history.Await(ctx, 2*r.ttl, "the end of the key", r.history.From, harness.DeletedKey((harness.Keys{}).Registration(id)))
	if errors.Is(err, context.DeadlineExceeded) && r.hangs == everyEndpoint {
		o.kept = true
		return nil
	}
	return r.judge(ctx, o, r.ttl)
}

// restartBroker freezes the sidecar of a broker that somebody starts again after each end.
func restartBroker(pause time.Duration) func(context.Context, *run, *outcome) error {
	return func(ctx context.Context, r *run, o *outcome) error {
		r.lab.KeepRunning(r.Broker, pause)
		if err := r.Sidecar.Freeze(); err != nil {
			return err
		}
		if r.rng.IntN(2) == 0 { // it also ends by itself, while it may still serve
			_ = harness.Wait(ctx, time.Duration(r.rng.Int64N(int64(r.ttl/2))))
			_ = r.Broker.Kill() // it may have ended just now
		}
		return r.judge(ctx, o, 3*r.ttl/2)
	}
}

// restartOnce kills the sidecar at a tenth of the TTL after the path to etcd was cut, and
// starts it again.
func restartOnce(tenth int) func(context.Context, *run, *outcome) error {
	return func(ctx context.Context, r *run, o *outcome) error {
		if err := r.link.Cut(); err != nil {
			return err
		}
		_ = harness.Wait(ctx, r.ttl*time.Duration(tenth)/10)
		if err := errors.Join(r.Sidecar.Kill(), r.Sidecar.Start()); err != nil {
			return err
		}
		return r.judge(ctx, o, r.ttl)
	}
}

// restartAlways does it at each of them.
func restartAlways(ctx context.Context, r *run, o *outcome) error {
	if err := r.link.Cut(); err != nil {
		return err
	}
	for range 10 {
		_ = harness.Wait(ctx, r.ttl/10)
		if err := errors.Join(r.Sidecar.Kill(), r.Sidecar.Start()); err != nil {
			return err
		}
	}
	return r.judge(ctx, o, r.ttl)
}
