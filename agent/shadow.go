package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery/topics"
)

// What a sidecar does to etcd, to the broker and to clients beside what its registrar does, as
// would_have_total counts it.
const (
	actLoad     = "load"      // of a topic
	actQuiesce  = "quiesce"   // of a topic
	actNotReady = "not_ready" // clients kept away
	actRevoke   = "revoke"    // give the registration up
	actSteer    = "steer"     // hand the mode over to the broker
)

var actions = []string{registration.ActRegister, registration.ActRebind, registration.ActSetMode, actLoad, actQuiesce, registration.ActStop, actNotReady, actRevoke, actSteer}

// shadow is --shadow: everything is decided, logged and counted, and nothing is done.
// It stands at the edges: between the sidecar and etcd, the broker, the broker's
// process, and those who ask the probes. What would have been done is remembered as if
// it stood, so that it is decided once.
//
// The one thing that is real is a lease on which no key hangs, so that renewals, the
// attachment and the fence are real decisions. A nil shadow does and says nothing.
type shadow struct {
	count *prometheus.CounterVec
	log   *slog.Logger
	event func(control.Event)
	store registration.Supposed
	// supposed reports whether the broker has that topic in its state only by what would
	// have been done; nil: before there is a broker.
	supposed func(topic string) bool
}

func newWouldHave() *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_would_have_total",
		Help: "What --shadow would have done and did not, by action. Without --shadow it stays 0."}, []string{"action"})
	for _, a := range actions {
		c.WithLabelValues(a)
	}
	return c
}

// would counts an action that is not done, and tells of it. Topics may be thousands: they are in
// the log, and not in the journal.
func (s *shadow) would(what, about string) {
	if s == nil {
		return
	}
	s.count.WithLabelValues(what).Inc()
	s.log.Info("would have, but for --shadow", "action", what, "about", about)
	switch what {
	case actLoad, actQuiesce:
	case actNotReady: // it has its own event
	default:
		s.event(control.Event{Kind: "shadow", To: what, Detail: about})
	}
}

// saying puts a line about something that was only supposed into the conditional.
func (s *shadow) saying(text string) string {
	if s == nil {
		return text
	}
	return "would have been, but for --shadow: " + text
}

// mark tells an event that is only supposed from one that happened. The broker, its
// process, the sidecar and its connection to etcd are real.
func (s *shadow) mark(e control.Event) control.Event {
	if s == nil {
		return e
	}
	switch e.Kind {
	case "mode", "boot", "registration", "readiness", "topics", "fence", "steer":
		if e.To == "contested" || e.To == "failing" || e.To == "ignored" {
			return e
		}
		e.Shadow = true
		e.Detail = strings.TrimSuffix(s.saying(e.Detail), ": ")
	}
	return e
}

// shadowSummary is the state in one sentence: what it would be, never that it is so.
func (a *agent) shadowSummary(said string, ready bool, p topics.Progress) string {
	if !ready {
		return "shadow: nothing is done and clients are not kept away; without --shadow it would say: " + said
	}
	name := a.view.Load().brokerID
	return fmt.Sprintf("shadow: %s would be attached and active, and would serve %s; in fact nothing is done.", name, control.Plural(p.Served, "topic"))
}

// enterShadow puts the shadow around the world, if --shadow asks for it.
func (a *agent) enterShadow() {
	if !a.cfg.Shadow {
		return
	}
	// What is only supposed must not be remembered by a later life that is real.
	a.cfg.StateDir = filepath.Join(a.cfg.StateDir, control.ShadowDir)
	a.log = a.log.With("shadow", true)
	a.shadow = &shadow{count: a.wouldHave, log: a.log, event: a.event}
	world := a.world
	a.world.Broker = func(c config.Config, store *cluster.Client, log *slog.Logger) (brokerapi.Broker, error) {
		b, err := world.Broker(c, store, log)
		if err != nil {
			return nil, err
		}
		return newShadowBroker(b, a.shadow), nil
	}
	a.world.Etcd = func(c cluster.Config, log *slog.Logger) (*cluster.Client, Line, error) {
		client, line, err := world.Etcd(c, log)
		if err != nil {
			return nil, nil, err
		}
		return client, shadowLine{line, a.shadow}, nil
	}
	a.world.Guard, a.world.LeftGuard = nil, nil // one that was left is right: the real lease is not renewed
	a.world.Stopper = nil
	if a.cfg.CanStop() {
		a.world.Stopper = func(config.Config, *slog.Logger) (Stopper, error) { return shadowStopper{a.shadow}, nil }
	}
	a.log.Info("shadow: everything is decided, logged and counted, and nothing is done; /ready stays 200")
}

// shadowLine really revokes: no key hangs on the lease.
type shadowLine struct {
	Line
	shadow *shadow
}

func (l shadowLine) Revoke(ctx context.Context, id int64) error {
	l.shadow.would(actRevoke, fmt.Sprintf("lease %x", id))
	return l.Line.Revoke(ctx, id)
}

type shadowStopper struct{ shadow *shadow }

func (s shadowStopper) Stop(context.Context) (string, error) {
	s.shadow.would(registration.ActStop, "the broker's process")
	return "only supposed (--shadow)", nil
}

// refuseInShadow keeps a person's word out of etcd: there it would be real.
func (a *agent) refuseInShadow(verb string) error {
	if a.shadow == nil {
		return nil
	}
	return &control.ExitError{Code: control.ExitRefused, Err: fmt.Errorf("%s: this sidecar runs with --shadow, and a mode in etcd is real for everybody: restart it without --shadow", verb)}
}

// putState writes the state key, but for the shadow.
func (a *agent) putState(ctx context.Context, w cluster.State, guard int64) (int64, error) {
	if a.shadow == nil {
		return a.main.PutState(ctx, a.ids.registered.now(), w, guard)
	}
	a.shadow.would(registration.ActSetMode, w.Mode+" ("+w.Reason+")")
	return a.shadow.store.SetState(a.ids.registered.now(), w, guard), nil
}

// ownKey hands on what the watch shows of a key that this sidecar writes. In shadow
// the key's absence is no news: it was never written.
func (a *agent) ownKey(take func(cluster.Update)) func(cluster.Update) {
	if a.shadow == nil {
		return take
	}
	return func(u cluster.Update) {
		if len(u.Puts) > 0 {
			take(u)
		}
	}
}

// shownChecks are what the probes answer by. Keeping clients away is doing something,
// so in shadow nothing but the sidecar's own liveness fails; the text of each check
// still says what there would be to say.
func (a *agent) shownChecks() probes.EndpointChecks {
	c := probes.EndpointChecks{Live: a.liveChecks(), Ready: a.readyChecks(), Startup: a.startupChecks(), Broker: a.brokerLiveChecks()}
	if a.shadow == nil {
		return c
	}
	c.Remark = func(causes []probes.Cause) string {
		if len(causes) == 0 {
			return "shadow: would have answered 200 too"
		}
		return "shadow: would have answered 503: " + firstCause(causes)
	}
	return c
}
