package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// status puts the present view together from what the parts last published.
func (a *agent) status() control.Status {
	s, v, h, p := a.view.Load(), a.keeper.View(), a.health.Snapshot(), a.reconciler.Snapshot()
	who, _ := a.identity.get()
	now := a.clock()
	c := a.circumstances(a.view.Load)
	steering := a.steerer.View()
	if steering.Steering == recovery.SteerDone && steering.LastError != "" {
		steering.Steering = recovery.SteerFailing // it had taken the mode, and does not again
	}
	st := control.Status{
		BrokerID: s.brokerID, Driver: a.cfg.Driver, Incarnation: a.incarnation, Epoch: v.Grant.Epoch,
		Attachment: s.Attachment.String(), Mode: string(s.Mode.Mode), Reason: string(s.Mode.Reason), Left: s.left, Boot: s.boot, Decided: s.decided,
		Lease: control.LeaseStatus{FailureStreak: v.FailureStreak, FailingSeconds: seconds(v.FailingFor(now)), LastError: v.LastError},
		Registration: control.RegistrationStatus{ID: s.registeredAs, Present: a.metrics.present.Load(), Adopted: v.Grant.Adopted,
			CreateRevision: v.Grant.Epoch, State: a.registrationState(s, v)},
		Broker: control.BrokerStatus{Up: h.At(time.Now()).String(), Version: who.Version, LastError: h.LastError, Steering: string(steering.Steering),
			Held: string(s.held)},
		Topics: control.TopicCounts{Assigned: p.Assigned, Served: p.Served, Missing: p.Missing, Orphan: p.Orphan,
			Quarantined: p.Quarantined, Loading: p.Loading, Elsewhere: p.Elsewhere, Unreadable: p.Unreadable, Ignored: len(a.ignoredKeys()), Listed: p.ServedKnown},
		Pause:   a.pauseStatus(),
		Guard:   a.guardStatus(s, h.At(time.Now()) == probes.Down),
		Fleet:   a.fleetStatus(),
		Config:  a.configStatus(),
		Denied:  a.denied(),
		State:   control.StateStatus{Saved: a.unsavedWhy() == "", Error: a.unsavedWhy()},
		Version: a.version, Since: a.started.UTC(), At: time.Now().UTC(),
	}
	for _, said := range a.misspelt.Range {
		if said != "" {
			st.Topics.Misspelt++
		}
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
	up := h.At(time.Now()) == probes.Up
	if !up {
		events, _ := a.journal.Since(0)
		st.StoppedBy = control.StoppedBy(events, who.StartedAt)
	}
	st.Boot.Past = st.Boot.Kind != "unknown" && !(up && who.Instance == s.instance)
	if st.StoppedBy != nil {
		c.Stopped = st.StoppedBy.Sentence(named(s))
	}
	if len(st.Denied) > 0 {
		c.Denied = st.Denied[0].Error
	}
	holds := recovery.Holds(c)
	causes := causesOf(holds)
	st.Ready = control.ReadyStatus{OK: len(causes) == 0, Causes: []string{}}
	for _, c := range causes {
		st.Ready.Causes = append(st.Ready.Causes, c.Name+": "+c.Message)
	}
	st.Severity = recovery.Judge(c, holds).String()
	st.Summary = a.summary(s, v, p, c, holds)
	st.Summary += deniedSentence(st) + a.drainSentence() + a.pauseSentence()
	if st.Shadow = a.shadow != nil; st.Shadow {
		st.Summary = a.shadowSummary(st.Summary, st.Ready.OK, p)
	}
	return st
}

// named is the broker's name in a sentence.
func named(s *snapshot) string { return cmp.Or(s.brokerID, "the broker") }

// summary is the state in one sentence, with the next step if there is one.
func (a *agent) summary(s *snapshot, v lease.View, p topics.Progress, c recovery.Circumstances, holds []recovery.Hold) string {
	say, of := recovery.Say(holds)
	fenced, unless, records := "fenced", "unless etcd answers", ""
	switch {
	case a.onlyUnready():
		fenced = "kept from clients (its storage fences it, so nothing else is done)"
	case !s.fence.Proven():
		fenced = "not proven to serve nothing yet"
	}
	if s.failure.Sequel == recovery.AwaitPerson { // etcd does
		unless = "unless somebody acts: " + s.failure.Detail
	}
	if c.Vacant {
		records = a.main.Keys().TopicRecords()
	}
	registered := map[bool]string{true: "not known to be registered", false: "not registered"}[a.registrationState(s, v) == "unknown"]
	return strings.NewReplacer("{name}", named(s), "{registered}", registered, "{text}", of.Text, "{cause}", of.Cause, "{error}", c.Error, "{held}", c.Ill,
		"{why}", a.unregisteredWhy(s, v), "{reason}", string(s.Mode.Reason), "{undrained}", c.Undrained,
		"{after}", a.afterwards(s, v, "it"), "{after etcd}", a.afterwards(s, v, "etcd"), "{unless}", unlessChild(a.cfg),
		"{fenced}", fenced, "{failing}", v.FailingFor(a.clock()).Round(time.Second).String(), "{class}", v.LastClass, "{advice}", advice(s.failure, a.cfg.EtcdEndpoints),
		"{at fence point}", a.atFencePoint(), "{fence}", v.Validity.FencePoint().Sub(a.clock()).Round(time.Second).String(), "{unless mended}", unless,
		"{served}", control.Plural(p.Served, "topic"), "{some}", fmt.Sprintf("%d of %s", p.Served, control.Plural(p.Assigned, "topic")),
		"{records}", records, "{unassigned}", a.unassigned(p)).Replace(say)
}

// unregisteredWhy is why the broker is not registered, after its name; empty: nobody tried, or none failed.
func (a *agent) unregisteredWhy(s *snapshot, v lease.View) string {
	switch {
	case v.LastError == "":
		return ""
	case a.presence != nil, v.LastClass == "": // the registrar waits
		return ": " + strings.TrimPrefix(v.LastError, lease.ErrDeferred.Error()+": ")
	case strings.HasSuffix(v.LastError, registration.ErrNothingToAdopt.Error()): // etcd answers
		return ": " + registration.ErrNothingToAdopt.Error()
	case s.failure.Sequel == recovery.AwaitPerson:
		return " (" + v.LastClass + "): " + s.failure.Detail
	}
	return fmt.Sprintf(": --etcd-endpoints %s: %s (%s)", a.cfg.EtcdEndpoints[0], control.Short(errors.New(v.LastError)).Error(), v.LastClass)
}

// deniedSentence adds what etcd denies since last to a state in one sentence; empty: nothing, or it says such a thing.
func deniedSentence(s control.Status) string {
	if len(s.Denied) == 0 || strings.Contains(s.Summary, ": permission denied to ") {
		return ""
	}
	return fmt.Sprintf(" Denied (%s): %s.", s.Denied[0].For, s.Denied[0].Error)
}

// unassigned says what is here, or was meant to be, and has no assignment; empty: nothing.
func (a *agent) unassigned(p topics.Progress) (text string) {
	if p.Quarantined > 0 && a.placer == nil {
		text = fmt.Sprintf("; %d quarantined: no assignment; put %s for what no other broker has, delete the rest with the broker's own tools", p.Quarantined, a.assignmentForm())
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
	case s.Conflict != "":
		return "another"
	case known && v.Validity.ExpiredAt(now) && v.FailureStreak > 0, !known && v.LastError != "" && v.LastClass != "" && !strings.HasSuffix(v.LastError, registration.ErrNothingToAdopt.Error()):
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
	case s.Mode.Mode == recovery.Drained:
		return ", and it is drained (" + string(s.Mode.Reason) + ")"
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
	case s.Attachment == recovery.Detached && v.Validity.Known():
		return "; if " + awaited + " answers before the lease ends it comes back by itself"
	case s.Attachment == recovery.Detached && s.WasRegistered && a.cfg.StaysActive():
		return "; it registers again, in the mode that it had"
	case s.Attachment == recovery.Detached && s.WasRegistered && a.registrationState(s, v) == "absent":
		return "; its registration has ended: if other brokers stayed registered, it comes back drained: active by itself if none of them lived on, else by 'holdfast activate'"
	case s.Attachment == recovery.Detached && s.WasRegistered:
		return "; if its registration has ended by then and other brokers stayed registered, it comes back drained: active by itself if none of them lived on, else by 'holdfast activate'"
	}
	return ""
}

// topics lists every topic that is wanted or held here.
func (a *agent) topics() []control.TopicStatus {
	list := []control.TopicStatus{}
	held, gone, drained := sync.OnceValue(a.heldBackBy), a.brokerGone(), a.view.Load().Mode.Mode == recovery.Drained
	for _, t := range a.reconciler.Topics() {
		switch {
		case gone && t.State == topics.TopicServed:
			t.State = topics.TopicMissing
		case gone && t.State == topics.TopicOrphan:
			continue // nobody's
		}
		if t.Error == "" && t.State == topics.TopicMissing {
			t.Error = held()
		}
		if t.State == topics.TopicMissing && drained {
			t.State = "withdrawn"
		}
		if said, _ := a.misspelt.Load(t.Topic); said != nil && said != "" {
			t.Error = strings.TrimPrefix(fmt.Sprintf("%s; its record, %s: %s", t.Error, a.main.Keys().TopicRecord(t.Topic), said), "; ")
		}
		if t.Error == "" && t.State == topics.TopicQuarantined && a.placer == nil {
			t.Error = "no assignment; if no other broker has it: etcdctl put " + a.main.Keys().Assignment(a.ids.assigned.now(), t.Topic) + " null; " +
				"if another has its data, or nobody wants it: delete it with the broker's own tools"
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
	for _, h := range a.holds() {
		if h.Blocks&recovery.Load != 0 {
			return "held back: " + h.Text
		}
	}
	return ""
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
