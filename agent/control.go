package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

const (
	setModeTimeout = 10 * time.Second
	drainTimeout   = 30 * time.Second // without one in the request
	activateWait   = 2 * time.Second
	takeWait       = 8 * time.Second // while the broker is being told to be active
)

// controlHandler serves the verbs on the control socket.
func (a *agent) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { control.Reply(w, a.status()) })
	mux.HandleFunc("GET /v1/topics", func(w http.ResponseWriter, r *http.Request) { control.Reply(w, a.topics()) })
	mux.HandleFunc("GET /v1/gate", a.serveGate)
	mux.HandleFunc("GET /v1/events", a.journal.ServeEvents)
	mux.HandleFunc("GET /v1/events/{id}", a.journal.ServeExplanation(a.settings))
	mux.HandleFunc("POST /v1/activate", a.steer(a.activate))
	mux.HandleFunc("POST /v1/drain", a.steer(a.drain))
	mux.HandleFunc("POST /v1/leave", control.Answered(a.leaveByOrder))
	mux.HandleFunc("POST /v1/unload", control.Answered(a.unload))
	mux.HandleFunc("POST /v1/drain/move", control.Answered(a.drainMoving))
	mux.HandleFunc("GET /v1/drain/move", a.serveDrained)
	mux.HandleFunc("GET /v1/moves", a.serveMoves)
	mux.HandleFunc("POST /v1/moves/{id}/cancel", a.serveMoveCancel)
	mux.HandleFunc("POST /v1/confirm", a.steer(a.confirm))
	mux.HandleFunc("POST /v1/reload", a.serveReload)
	mux.HandleFunc("POST /v1/pause", control.Answered(a.pause))
	mux.HandleFunc("POST /v1/resume", a.serveResume)
	return mux
}

// order is the body of a steering request.
type order struct {
	Reason         string  `json:"reason"`
	TimeoutSeconds float64 `json:"timeout_seconds"`
}

func (a *agent) steer(do func(context.Context, order) error) http.HandlerFunc {
	return control.Answered(func(ctx context.Context, o order) (st control.Status, err error) {
		if err = control.CheckReason(o.Reason); err == nil {
			err = do(ctx, o)
		}
		if err == nil {
			st = a.status()
		}
		return st, err
	})
}

// activate sets the mode and gives the broker a moment to take it, and the topics to load,
// so that the answer tells how it went.
func (a *agent) activate(ctx context.Context, o order) error {
	if err := a.refuseInShadow("activate"); err != nil {
		return err
	}
	if err := a.await(ctx, a.keepHere); err != nil {
		return err
	}
	if a.moves != nil {
		if err := a.endDrain(ctx); err != nil {
			return err
		}
	}
	a.awaitDecided(ctx)
	if err := a.setModeByOperator(ctx, recovery.Active, o.Reason); err != nil {
		return err
	}
	a.awaitActive(ctx)
	return nil
}

// awaitActive returns when clients may come, or enough was waited for it: the broker may
// be still loading, or something else is wrong, and the status says it.
func (a *agent) awaitActive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, takeWait)
	defer cancel()
	for enough := time.Now().Add(activateWait); ctx.Err() == nil && len(a.notReady()) > 0; probes.Sleep(ctx, 20*time.Millisecond) {
		if time.Now().Before(enough) {
			continue
		}
		if a.steerer.View().Steering != recovery.SteerPending {
			return
		}
		enough = time.Now().Add(activateWait)
	}
}

// drain sets the mode and waits until nothing is served any more, and until a broker with a
// mode of its own has taken it.
func (a *agent) drain(ctx context.Context, o order) error {
	if err := a.refuseInShadow("drain"); err != nil {
		return err
	}
	if err := a.setModeByOperator(ctx, recovery.Drained, o.Reason); err != nil {
		return err
	}
	timeout := drainTimeout
	if o.TimeoutSeconds > 0 {
		timeout = time.Duration(o.TimeoutSeconds * float64(time.Second))
	}
	return a.awaitDrained(ctx, timeout)
}

// awaitDrained returns nil when nothing is served and the broker has taken its mode, or has ended:
// the next process is told.
func (a *agent) awaitDrained(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		p, steering := a.reconciler.Snapshot(), a.steerer.View()
		detached := a.view.Load().Attachment == recovery.Detached
		taken := detached || steering.Steering.Obeys() // a detached broker is told when it is attached again
		if a.brokerGone() || (p.Served+p.Orphan == 0 || a.keeps.Load()) && taken && (p.ServedKnown || detached) {
			return nil
		}
		if ctx.Err() == nil {
			probes.Sleep(ctx, 50*time.Millisecond)
			continue
		}
		switch left := control.Plural(p.Served+p.Orphan, "topic"); {
		case a.view.Load().held != "":
			return fmt.Errorf("the broker is drained for its clients, but after %s it does not answer (held: %s), so %s may still be served: they are given up when it answers; clients are kept away already",
				timeout, recovery.HeldWords(a.view.Load().held), left)
		case a.health.Snapshot().At(time.Now()) == probes.Down:
			return fmt.Errorf("the broker is drained for its clients, but after %s it does not answer, so %s may still be served: stop it, or start it; clients are kept away already", timeout, left)
		case !taken && p.Served+p.Orphan == 0:
			return fmt.Errorf("the broker is drained for its clients, but after %s %s: see 'holdfast status'; clients are kept away already", timeout, notTaken(steering))
		case !taken: // which is why they are
			return fmt.Errorf("the broker is drained for its clients, but after %s %s still served: %s; clients are kept away already", timeout, left, notTaken(steering))
		default:
			return fmt.Errorf("the broker is drained, but after %s %s still served: see 'holdfast topics'; clients are kept away already", timeout, left)
		}
	}
}

func (a *agent) confirm(context.Context, order) error {
	if !a.reconciler.Snapshot().GuardTripped {
		return errors.New("nothing to confirm: the mass-change guard has not tripped")
	}
	a.reconciler.Confirm()
	return nil
}

// setModeByOperator writes a person's word to etcd and returns when the loop has
// taken it up. Repeating it changes nothing but the reason, if one is given.
func (a *agent) setModeByOperator(ctx context.Context, mode recovery.Mode, why string) error {
	s := a.view.Load()
	switch {
	case s.Conflict != "":
		return control.Refused("%s", s.Conflict)
	case s.brokerID == "":
		return fmt.Errorf("the broker was not found yet (%s): start it, then repeat", a.health.Snapshot().LastError)
	case s.Mode.Mode == "":
		return fmt.Errorf("the startup decision is to come (%s): repeat when the broker is registered; 'holdfast status' says what it waits for", firstCause(a.notReady()))
	}
	rec := operatorsWord(mode, recovery.Reason(why), s.Mode)
	ctx, cancel := context.WithTimeout(ctx, setModeTimeout)
	defer cancel()
	if a.presence != nil {
		return a.setModeHere(ctx, rec)
	}
	var err error
	for range registration.Tries {
		var seen cluster.Snapshot
		if seen, err = a.readPatiently(ctx, s.registeredAs); err != nil {
			break
		}
		var rev int64
		if rev, err = a.main.PutState(ctx, s.registeredAs, *registration.StateOf(rec), seen.StateRevision); err == nil {
			return a.await(ctx, func() {
				if rev > a.modeRev {
					a.setMode(rec, rev, "by an operator")
				}
			})
		}
		if !errors.Is(err, cluster.ErrChanged) {
			break
		}
	}
	if errors.Is(err, cluster.ErrChanged) {
		return errors.New("mode not changed: others changed it at the same time: look at it, and repeat")
	}
	return fmt.Errorf("mode not changed: %v; repeat when etcd does it", control.EtcdError(a.cfg, err))
}

// operatorsWord keeps, of a broker that an operator has drained already, the reason if no other is given.
func operatorsWord(mode recovery.Mode, why recovery.Reason, before recovery.ModeRecord) recovery.ModeRecord {
	if mode == recovery.Drained && before.Mode == mode && before.By == recovery.ByOperator {
		why = cmp.Or(why, before.Reason)
	}
	return recovery.ModeRecord{Mode: mode, Reason: cmp.Or(why, recovery.ReasonOperator), By: recovery.ByOperator}
}

// readPatiently reads until etcd is reached or ctx ends: after an outage the renewals
// have their connection back up to two seconds before everything else has.
func (a *agent) readPatiently(ctx context.Context, id string) (seen cluster.Snapshot, err error) {
	err = patiently(ctx, func() error {
		seen, err = a.main.Snapshot(ctx, id)
		return err
	})
	return seen, err
}

func patiently(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil || cluster.Classify(err) != cluster.ClassUnreachable {
			return err
		}
		if probes.Sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return err
		}
	}
}

// await runs f in the loop, and returns when the loop has acted on it.
func (a *agent) await(ctx context.Context, f func()) error {
	if err := a.inLoop(ctx, f); err != nil {
		return err
	}
	return a.inLoop(ctx, func() {})
}

// inLoop runs f in the loop. After an error f may still be run, or be running.
func (a *agent) inLoop(ctx context.Context, f func()) error {
	done := make(chan struct{})
	a.tell(ctx, func() {
		defer close(done)
		f()
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
