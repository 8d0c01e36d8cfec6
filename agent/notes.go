package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// progressEvery is the pause between two lines about a long load.
const progressEvery = 2 * time.Second

func (a *agent) noteHealth(verdict probes.Verdict, lastErr string) {
	if verdict == a.verdict {
		return
	}
	a.event(control.Event{Kind: "broker", From: a.verdict.String(), To: verdict.String(), Epoch: a.grant.Epoch, Detail: lastErr})
	a.verdict = verdict
}

func (a *agent) noteTopics() {
	p := a.reconciler.Snapshot()
	a.noteProgress(p, time.Now())
	a.noteLost(p)
	if p.GuardTripped != a.guardTripped {
		a.guardTripped = p.GuardTripped
		e := control.Event{Kind: "topics", To: "guard_tripped", Reason: "mass_change", Epoch: a.grant.Epoch, Detail: p.GuardDetail}
		if !p.GuardTripped {
			e = control.Event{Kind: "topics", From: "guard_tripped", To: "guard_cleared", Epoch: a.grant.Epoch}
		}
		a.event(e)
	}
	if p.AssignedKnown && p.ServedKnown && p.Orphan == 0 { // else it is not known how many there will be
		if p.Quarantined > a.quarantined && a.mode.Mode != recovery.Drained {
			a.event(control.Event{Kind: "topics", To: "quarantined", Epoch: a.grant.Epoch,
				Detail: control.Plural(p.Quarantined, "topic") + " held here without an assignment, quiesced"})
		}
		a.quarantined = p.Quarantined
	}
	if p.GateOpenedBy != a.gateOpenedBy {
		a.gateOpenedBy = p.GateOpenedBy
		if p.GateOpenedBy != "" {
			a.event(control.Event{Kind: "topics", To: "reconciled", Reason: p.GateOpenedBy, Epoch: a.grant.Epoch,
				Detail: fmt.Sprintf("%d of %s served", p.Served, control.Plural(p.Assigned, "assigned topic"))})
		}
	}
}

// maxNamed is how many topics an event names.
const maxNamed = 20

// noteLost tells of topics that were made anew, and remembers up to which revision none was lost.
func (a *agent) noteLost(p topics.Progress) {
	if anew := a.reconciler.Anew(); len(anew) > 0 {
		named := strings.Join(anew[:min(len(anew), maxNamed)], ", ")
		if len(anew) > maxNamed {
			named += ", …"
		}
		a.event(control.Event{Kind: "topics", To: "made_anew", Reason: "lost", Epoch: a.grant.Epoch,
			Detail: control.Plural(len(anew), "topic") + " served here before and not there any more, made anew, empty and without consumers: " + named})
	}
	if p.Whole > a.memory.Whole {
		a.remember(func(m *memory) { m.Whole = p.Whole })
	}
}

// forgetWhole is for other data, or a store that went back: what was served on it is not known.
func (a *agent) forgetWhole() {
	if a.memory.Whole != 0 {
		a.remember(func(m *memory) { m.Whole = 0 })
	}
	a.reconciler.SetWhole(0)
}

// noteProgress tells how far a long load is, so that whoever starts a broker with
// many topics sees it move.
func (a *agent) noteProgress(p topics.Progress, now time.Time) {
	switch {
	case p.Reconciled || p.Missing == 0 || !p.ServedKnown || a.verdict != probes.Up ||
		a.mode.Mode != recovery.Active || a.attachment == recovery.Detached:
		a.progress = time.Time{}
	case a.progress.IsZero():
		a.progress = now // a short load says nothing
	case now.Sub(a.progress) >= progressEvery:
		a.progress = now
		a.log.Info("loading topics", "served", p.Served, "of", p.Assigned, "failed", p.Failed)
	}
}

func (a *agent) noteReadiness() {
	a.publish()
	causes := a.notReady()
	ready := len(causes) == 0
	a.everReady = a.everReady || ready
	if ready == a.ready {
		return
	}
	a.ready = ready
	e := control.Event{Kind: "readiness", From: "ready", To: "not_ready", Epoch: a.grant.Epoch}
	if ready {
		e.From, e.To = e.To, e.From
		a.log.Info(a.shadow.saying("ready: clients may come"), "epoch", a.grant.Epoch)
	} else {
		e.Reason, e.Detail = causes[0].Name, causes[0].Message
		a.shadow.would(actNotReady, causes[0].Name+": "+causes[0].Message)
		a.log.Warn(a.shadow.saying("not ready: clients are kept away"), "cause", causes[0].Name, "detail", causes[0].Message)
	}
	a.metrics.readiness.WithLabelValues(e.To).Inc()
	a.event(e)
}

func (a *agent) event(e control.Event) { a.journal.Add(a.shadow.mark(e)) }

// denied are the rights that etcd denies now, with what is to be done.
func (a *agent) denied() []cluster.Denial {
	open, _ := a.denials.Look(time.Now())
	for i, d := range open {
		open[i].Error = control.ExplainAuth(a.cfg, errors.New(d.Error)).Error()
	}
	return open
}

// noteDenied tells of each right that etcd begins to deny, and of each that it does not any more.
func (a *agent) noteDenied() {
	was, now := a.deniedTold, a.denied()
	a.deniedTold = now
	for _, d := range slices.Concat(was, now) {
		same := func(o cluster.Denial) bool { return o.Since.Equal(d.Since) && o.For == d.For && o.Right == d.Right }
		e := control.Event{Kind: "etcd", From: "denied", To: "over", Reason: d.For, Epoch: a.grant.Epoch, Detail: d.Error}
		if !slices.ContainsFunc(was, same) {
			e.From, e.To = "", "denied"
		} else if slices.ContainsFunc(now, same) {
			continue
		}
		a.event(e)
	}
}
