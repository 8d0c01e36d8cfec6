package agent

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// status puts the present view together from what the parts last published.
func (a *agent) status() control.Status {
	s, v, h, p := a.view.Load(), a.keeper.View(), a.health.Snapshot(), a.reconciler.Snapshot()
	who, _ := a.identity.get()
	now := a.clock()
	causes := a.notReady()
	steering := a.steerer.View()
	if steering.Steering == recovery.SteerDone && steering.LastError != "" {
		steering.Steering = recovery.SteerFailing // it had taken the mode, and does not again
	}
	st := control.Status{
		BrokerID: s.brokerID, Driver: a.cfg.Driver, Incarnation: a.incarnation, Epoch: v.Grant.Epoch,
		Attachment: s.attachment.String(), Mode: string(s.mode.Mode), Reason: string(s.mode.Reason), Boot: s.boot, Decided: s.decided,
		Lease: control.LeaseStatus{FailureStreak: v.FailureStreak, FailingSeconds: seconds(v.FailingFor(now)), LastError: v.LastError},
		Registration: control.RegistrationStatus{ID: s.registeredAs, Present: a.metrics.present.Load(), Adopted: v.Grant.Adopted,
			CreateRevision: v.Grant.Epoch, State: a.registrationState(s, v)},
		Broker: control.BrokerStatus{Up: h.At(time.Now()).String(), Version: who.Version, LastError: h.LastError, Steering: string(steering.Steering),
			Held: string(s.held)},
		Topics: control.TopicCounts{Assigned: p.Assigned, Served: p.Served, Missing: p.Missing, Orphan: p.Orphan,
			Quarantined: p.Quarantined, Loading: p.Loading, Elsewhere: p.Elsewhere, Unreadable: p.Unreadable, Ignored: len(a.ignoredKeys()), Listed: p.ServedKnown},
		Ready:   control.ReadyStatus{OK: len(causes) == 0, Causes: []string{}},
		Pause:   a.pauseStatus(),
		Guard:   a.guardStatus(s, h.At(time.Now()) == probes.Down),
		Fleet:   a.fleetStatus(),
		Config:  a.configStatus(),
		State:   control.StateStatus{Saved: a.unsavedWhy() == "", Error: a.unsavedWhy()},
		Version: a.version, Since: a.started.UTC(), At: time.Now().UTC(),
	}
	if t := &st.Topics; a.brokerGone() { // whatever it said last
		t.Missing, t.Served, t.Orphan = t.Missing+t.Served, 0, 0
	}
	if a.moves != nil {
		st.Moves = a.moves.Own()
	}
	if v.Validity.Known() && a.presence == nil {
		st.Lease.ID = strconv.FormatInt(v.Grant.LeaseID, 16)
		st.Lease.TTLSeconds = seconds(v.Validity.TTL)
		st.Lease.RemainingSeconds = seconds(v.Validity.Deadline().Sub(now))
		st.Lease.FenceInSeconds = seconds(v.Validity.FencePoint().Sub(now))
	}
	for _, c := range causes {
		st.Ready.Causes = append(st.Ready.Causes, c.Name+": "+c.Message)
	}
	up := h.At(time.Now()) == probes.Up
	if !up {
		events, _ := a.journal.Since(0)
		st.StoppedBy = control.StoppedBy(events, who.StartedAt)
	}
	st.Boot.Past = st.Boot.Kind != "unknown" && !(up && who.Instance == s.instance)
	st.Summary = a.summary(s, v, p, h, causes, st.StoppedBy) + a.drainSentence() + a.pauseSentence()
	if st.Shadow = a.shadow != nil; st.Shadow {
		st.Summary = a.shadowSummary(st.Summary, len(causes) == 0, p)
	}
	st.Severity = control.SeverityOf(st, control.Circumstances{EverReady: s.everReady, WasRegistered: s.wasRegistered,
		Leaves:   s.leaving != "",
		Asked:    s.mode.By != recovery.ByHoldfast || s.mode.Reason == recovery.ReasonJoin,
		MustStop: s.restart != "" || s.conflict != "",
		Risk:     a.staleView() != "" || p.GuardTripped || s.foreign != "" || a.risk != "" || s.unguarded || a.meantElsewhere(p) || !st.State.Saved})
	return st
}

// summary is the state in one sentence, with the next step if there is one.
func (a *agent) summary(s *snapshot, v lease.View, p topics.Progress, h probes.HealthView, causes []probes.Cause, stopped *control.StopStatus) string {
	name := s.brokerID
	if name == "" {
		name = "the broker"
	}
	switch {
	case len(causes) == 0 && v.FailureStreak > 0:
		next := "unless etcd answers"
		if s.failure.Sequel == recovery.AwaitPerson { // it does
			next = "unless somebody acts: " + s.failure.Detail
		}
		return fmt.Sprintf("%s serves %s, but renewals fail (%s): %s in %s %s.", name, control.Plural(p.Served, "topic"),
			v.LastClass, a.atFencePoint(), v.Validity.FencePoint().Sub(a.clock()).Round(time.Second), next)
	case len(causes) == 0 && p.Missing > 0 && p.Missing == p.Elsewhere:
		return fmt.Sprintf("%s serves %d of %s; other brokers own the rest: see 'holdfast topics'.", name, p.Served, control.Plural(p.Assigned, "topic"))
	case len(causes) == 0 && a.staleView() != "": // which is also why topics do not load
		return fmt.Sprintf("%s serves %d of %s, but %s.", name, p.Served, control.Plural(p.Assigned, "topic"), a.staleView())
	case len(causes) == 0 && p.Missing > 0:
		return fmt.Sprintf("%s serves %d of %s; the others do not load: see 'holdfast topics'.", name, p.Served, control.Plural(p.Assigned, "topic"))
	case len(causes) == 0 && p.GuardTripped:
		return name + " is ready, and the mass-change guard waits for an operator: " + p.GuardDetail
	case len(causes) == 0 && s.foreign != "":
		return fmt.Sprintf("%s serves %s, but nothing can stop it in time: %s.", name, control.Plural(p.Served, "topic"), s.foreign)
	case len(causes) == 0 && a.risk != "":
		return fmt.Sprintf("%s serves %s, but DANGER (--i-know): %s.", name, control.Plural(p.Served, "topic"), a.risk)
	case len(causes) == 0 && s.unguarded:
		return fmt.Sprintf("%s serves %s without a guard: nothing stops it if this sidecar dies or hangs; see 'holdfast events'.", name, control.Plural(p.Served, "topic"))
	case len(causes) == 0 && a.placer != nil && p.Assigned == 0:
		return fmt.Sprintf("%s is attached and active, and no topic is placed here; a topic is made by its record: etcdctl put %sshop/orders null.",
			name, a.main.Keys().TopicRecords())
	case len(causes) == 0:
		return fmt.Sprintf("%s is attached, active and serves %s%s.", name, control.Plural(p.Served, "topic"), a.unassigned(p))
	case s.restart != "":
		return fmt.Sprintf("%s must be restarted: %s; stop it by hand if in doubt.", name, s.restart)
	case s.conflict != "":
		return "Clients are kept away: " + s.conflict + "."
	case s.leaving != "":
		return fmt.Sprintf("Clients are kept away from %s: %s.", name, s.leaving)
	case stopped != nil:
		return fmt.Sprintf("%s: clients are kept away%s; start it%s.", stopped.Sentence(name), a.afterwards(s, v, "it"), unlessChild(a.cfg))
	case s.held != "":
		return fmt.Sprintf("%s does not answer (%s) and is held: %s; clients are kept away, its registration is renewed and nothing is stopped; look for what the brokers depend on.",
			name, h.LastError, recovery.HeldWords(s.held))
	case a.brokerGone():
		return fmt.Sprintf("The process of %s has ended: clients are kept away%s; start it%s.", name, a.afterwards(s, v, "it"), unlessChild(a.cfg))
	case h.At(time.Now()) == probes.Down:
		return fmt.Sprintf("%s is down or does not answer (%s): clients are kept away%s; if it hangs and other brokers do not, stop it, then start it.", name, h.LastError, a.afterwards(s, v, "it"))
	case a.presence != nil && v.LastError != "" && v.Validity.ExpiredAt(a.clock()):
		return fmt.Sprintf("What becomes of %s is not decided: %s.", name, strings.TrimPrefix(v.LastError, lease.ErrDeferred.Error()+": "))
	case !v.Validity.Known() && v.LastError != "" && v.LastClass == "": // the registrar waits
		return fmt.Sprintf("%s is not registered: %s.", name, strings.TrimPrefix(v.LastError, lease.ErrDeferred.Error()+": "))
	case !v.Validity.Known() && strings.HasSuffix(v.LastError, errNothingToAdopt.Error()): // etcd answers
		return fmt.Sprintf("%s is not registered: %s.", name, errNothingToAdopt)
	case !v.Validity.Known() && v.LastError != "" && s.failure.Sequel == recovery.AwaitPerson:
		return fmt.Sprintf("%s is not registered (%s): %s.", name, v.LastClass, s.failure.Detail)
	case !v.Validity.Known() && v.LastError != "":
		return fmt.Sprintf("%s is not registered: --etcd-endpoints %s: %s (%s).", name, a.cfg.EtcdEndpoints[0],
			control.Short(errors.New(v.LastError)).Error(), v.LastClass)
	case s.attachment == recovery.Detached && v.FailureStreak > 0:
		fenced := "fenced"
		switch {
		case a.onlyUnready():
			fenced = "kept from clients (its storage fences it, so nothing else is done)"
		case !s.fence.Proven():
			fenced = "not proven to serve nothing yet"
		}
		return fmt.Sprintf("%s is detached and %s: no renewal was confirmed for %s (%s)%s; %s.", name, fenced,
			v.FailingFor(a.clock()).Round(time.Second), v.LastClass, a.afterwards(s, v, "etcd"), advice(s.failure, a.cfg.EtcdEndpoints))
	case s.mode.Mode == recovery.Drained && a.steerer.View().Steering == recovery.SteerFailing:
		return fmt.Sprintf("%s is to be drained (%s) and clients are kept away, but %s.", name, s.mode.Reason, notTaken(a.steerer.View()))
	case s.mode.Mode == recovery.Drained && a.steerer.View().LastError != "":
		return fmt.Sprintf("%s is drained (%s) and keeps clients away, but does not take that again, so topics may have come back: %s.", name, s.mode.Reason, a.steerer.View().LastError)
	case s.mode.Mode == recovery.Drained && s.suspect:
		return fmt.Sprintf("%s is drained (%s) until it is known whether other brokers lived on: if none did it is active again by itself; nothing is to be done yet.", name, s.mode.Reason)
	case s.mode.Mode == recovery.Drained:
		return fmt.Sprintf("%s is drained (%s) and keeps clients away; when the cause is understood: holdfast activate.", name, s.mode.Reason)
	case s.mode.Mode == recovery.Draining:
		return fmt.Sprintf("%s is draining (%s); to take it back: holdfast activate.", name, s.mode.Reason)
	}
	return fmt.Sprintf("%s is not ready: %s: %s.", name, causes[0].Name, causes[0].Message)
}

// unassigned says what is here, or was meant to be, and has no assignment; empty: nothing.
func (a *agent) unassigned(p topics.Progress) (text string) {
	if p.Quarantined > 0 && a.placer == nil {
		text = fmt.Sprintf("; %d quarantined: no assignment; put %s for what no other broker has", p.Quarantined, a.assignmentForm())
	}
	if keys := a.ignoredKeys(); len(keys) > 0 {
		text += fmt.Sprintf("; %s ignored (%s): no assignment, want %s", control.Plural(len(keys), "key"), keys[0], a.assignmentForm())
	}
	if text != "" {
		text += "; see 'holdfast topics'"
	}
	return text
}

// meantElsewhere reports whether an assignment is not where it was meant to be, as far as can be told: a
// topic that went to another broker stays here for nobody, and is no trouble.
func (a *agent) meantElsewhere(p topics.Progress) bool {
	return len(a.ignoredKeys()) > 0 || p.Quarantined > 0 && p.Served == 0 && a.placer == nil
}

// advice says what a failure asks of a person.
func advice(f recovery.FailureVerdict, endpoints []string) string {
	if f.Sequel == recovery.AwaitPerson || f.Sequel == recovery.CountAttempt ||
		slices.Contains([]recovery.Failure{recovery.FailureNoLeader, recovery.FailureOverloaded, recovery.FailureUnproven}, recovery.Failure(f.Reason)) {
		return f.Detail
	}
	return "check etcd (" + strings.Join(endpoints, ", ") + ") and the way to it"
}

// unlessChild: a broker that we start is started again without a person.
func unlessChild(c config.Config) string {
	if len(c.Command) > 0 {
		return " unless --broker-restart does"
	}
	return ""
}

// registrationState says whose the key in etcd is. What the watch showed last counts only
// while etcd is heard of.
func (a *agent) registrationState(s *snapshot, v lease.View) string {
	known, now := v.Validity.Known(), a.clock()
	switch {
	case a.shadow != nil:
		return "supposed"
	case a.presence != nil:
		return unleased
	case s.conflict != "":
		return "another"
	case known && v.Validity.ExpiredAt(now) && v.FailureStreak > 0, !known && v.LastError != "" && v.LastClass != "":
		return "unknown"
	case !a.metrics.present.Load():
		return "absent"
	case known:
		return "held"
	}
	return "unconfirmed"
}

// afterwards says what a broker that is cut off or down has to expect. awaited is who must
// answer for it to come back.
func (a *agent) afterwards(s *snapshot, v lease.View, awaited string) string {
	switch {
	case s.mode.Mode == recovery.Drained:
		return ", and it is drained (" + string(s.mode.Reason) + ")"
	case s.left:
		return "; it has left on purpose: back within " + config.FormatDuration(a.cfg.ReturnWithin) + " it comes back active"
	case a.presence != nil && (!v.Validity.Known() || v.Validity.ExpiredAt(a.clock())):
		return "; it is away for longer than the TTL: if other brokers are active when it comes back, " + control.ComesBack(a.cfg)
	case a.presence != nil:
		return "; if it is away for longer than the TTL and other brokers are active then, it comes back drained and waits for 'holdfast activate'"
	case v.Validity.Known() && v.Validity.ExpiredAt(a.clock()) && a.registrationState(s, v) == "absent":
		return "; its registration has ended: if other brokers stayed registered, " + control.ComesBack(a.cfg)
	case v.Validity.Known() && v.Validity.ExpiredAt(a.clock()):
		return "; its registration may have run out: if it has and other brokers stayed registered, " + control.ComesBack(a.cfg)
	case s.attachment == recovery.Detached && v.Validity.Known():
		return "; if " + awaited + " answers before the lease ends it comes back by itself"
	case s.attachment == recovery.Detached && s.wasRegistered && a.cfg.StaysActive():
		return "; it registers again, in the mode that it had"
	case s.attachment == recovery.Detached && s.wasRegistered && a.registrationState(s, v) == "absent":
		return "; its registration has ended: if other brokers stayed registered, it comes back drained: active by itself if none of them lived on, else by 'holdfast activate'"
	case s.attachment == recovery.Detached && s.wasRegistered:
		return "; if its registration has ended by then and other brokers stayed registered, it comes back drained: active by itself if none of them lived on, else by 'holdfast activate'"
	}
	return ""
}

// topics lists every topic that is wanted or held here.
func (a *agent) topics() []control.TopicStatus {
	list := []control.TopicStatus{}
	held, gone := a.heldBackBy(), a.brokerGone()
	for _, t := range a.reconciler.Topics() {
		switch {
		case gone && t.State == topics.TopicServed:
			t.State = topics.TopicMissing
		case gone && t.State == topics.TopicOrphan:
			continue // nobody's
		}
		if t.Error == "" && t.State == topics.TopicMissing {
			t.Error = held
		}
		if t.Error == "" && t.State == topics.TopicQuarantined && a.placer == nil {
			t.Error = "no assignment; if no other broker has it: etcdctl put " + a.main.Keys().Assignment(a.ids.assigned.now(), t.Topic) + " null"
		}
		supposed := a.shadow != nil && a.shadow.supposed(t.Topic)
		list = append(list, control.TopicStatus{Topic: t.Topic, State: t.State, Error: t.Error, Supposed: supposed})
	}
	for _, key := range a.ignoredKeys() {
		list = append(list, control.TopicStatus{Topic: key, State: "ignored", Error: "this key is no assignment: write " + a.assignmentForm() + ", and delete this one"})
	}
	return list
}

// heldBackBy is why topics are not loaded now although nothing failed; empty: nothing keeps
// them.
func (a *agent) heldBackBy() string {
	s := a.view.Load()
	switch pause := a.pauseStatus(); {
	case a.brokerGone():
		return "the broker's process has ended"
	case s.mode.Mode == recovery.Drained, s.mode.Mode == recovery.Draining:
		return "held back: the broker is " + string(s.mode.Mode)
	case s.attachment == recovery.Detached:
		return "held back: detached from the cluster"
	case pause != nil && s.mode.HeldByPause():
		return "held back: paused by " + pause.Owner
	}
	return ""
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
