package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// endLook is the pause between two looks at whether a broker has ended.
const endLook = 50 * time.Millisecond

// refusals in a row are taken for the end of a process that is not seen.
const refusals = 2

// ender stops a broker by its own admin API, where nobody has a hand on its process.
//
// That the broker took the request proves nothing, nor does a timeout. Its end is proven by the
// kernel, where the process that holds the admin port is seen from here: it has ended, or has
// closed every port that it had, and every connection there. (Pulsar 4.0.7, asked on 2026-11-23,
// closed its ports within 0.2 s, answered after 5.2 s, closed the connections of its admin API
// then, and its process lived on for more than a minute.) Else it is proven by connections that
// are refused at the admin address, or by another process that answers there. Not guaranteed:
// that a broker which closes its admin port before it stops serving, and whose process is not
// seen, serves nothing from that moment on.
type ender struct {
	brokerapi.Ender
	identify func(context.Context) (brokerapi.Identity, error)
	known    func() brokerapi.Identity // who answered last
	holder   func(context.Context) (process.Target, bool)
	gone     func(process.Target) bool
	ports    func(pid int) []uint16
	silent   func(pid int, ports []uint16) bool // it has closed them, and the connections there
	refused  func(context.Context) bool         // nobody listens at the admin address
}

// findStopper finds the way to stop the broker: a hand on its process, or its admin API.
func (a *agent) findStopper() (err error) {
	if a.world.Stopper != nil {
		if a.stopper, err = a.world.Stopper(a.cfg, a.log.With("part", "process")); err != nil {
			return err
		}
	}
	b, ok := a.broker.(brokerapi.Ender)
	switch {
	case a.stopper != nil || !a.can.End || !ok:
	case a.shadow != nil:
		a.stopper = shadowStopper{a.shadow}
	default:
		a.stopper = &ender{
			Ender: b, identify: a.broker.Identify,
			known: func() brokerapi.Identity { who, _ := a.identity.get(); return who },
			holder: func(ctx context.Context) (process.Target, bool) {
				v, seen := probes.ListenerAt(ctx, adminAddrs(ctx, a.cfg))
				return process.Target{Pid: v.Pid, StartTicks: v.StartTicks}, seen
			},
			gone:    process.Target.Gone,
			ports:   probes.Ports,
			silent:  probes.Silent,
			refused: func(ctx context.Context) bool { return refuses(ctx, adminAddrs(ctx, a.cfg)) },
		}
	}
	return nil
}

// Stop implements Stopper. It asks once.
func (e *ender) Stop(ctx context.Context) (how string, err error) {
	who := e.known()
	if who.Instance == "" {
		return "", fmt.Errorf("%w: none has answered yet", process.ErrNotFound)
	}
	holder, seen, heard := e.look(ctx)
	var ports []uint16
	if seen {
		ports = e.ports(holder.Pid)
	}
	asked := e.ask(ctx)
	for streak := 0; ; {
		switch {
		case seen && e.gone(holder):
			return "its admin API", nil
		case seen && len(ports) > 0 && e.silent(holder.Pid, ports):
			if streak++; streak >= refusals {
				return "its admin API, and its process lives on with its ports closed", nil
			}
		case seen:
			streak = 0
		case e.refused(ctx):
			if streak++; streak < refusals {
				break
			}
			if asked != nil && !heard {
				return process.HowGone, nil
			}
			return "its admin API", nil // also if the broker took the answer along
		default:
			streak = 0
			if now, err := e.identify(ctx); err == nil && now.Instance != "" && now.Instance != who.Instance {
				return "its admin API, and another process answers", nil
			}
		}
		select {
		case <-time.After(endLook):
		case <-ctx.Done():
			if asked != nil {
				return "", fmt.Errorf("the broker did not take the request to end: %w", asked)
			}
			return "", fmt.Errorf("the broker took the request to end and is not proven to have ended: %w", ctx.Err())
		}
	}
}

// look is at who holds the admin port, and whether anybody does, before the broker is asked.
// It may only make the proof better, so it takes a quarter of the time: on a busy host to
// look at every process lasts for seconds, and then the broker was never asked.
func (e *ender) look(ctx context.Context) (holder process.Target, seen, heard bool) {
	ctx, cancel := within(ctx, 4)
	defer cancel()
	holder, seen = e.holder(ctx)
	return holder, seen, !e.refused(ctx)
}

// ask leaves half of the time for the proof.
func (e *ender) ask(ctx context.Context) error {
	ctx, cancel := within(ctx, 2)
	defer cancel()
	return e.End(ctx)
}

// within is a part of the time that ctx leaves.
func within(ctx context.Context, part int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(part))
}

// refuses reports whether connections are refused at each of the addresses. No answer is
// no refusal.
func refuses(ctx context.Context, at []netip.AddrPort) bool {
	for _, a := range at {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", a.String())
		if err == nil {
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return len(at) > 0
}
