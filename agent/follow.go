package agent

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery"
)

// followState keeps the loop informed of the broker's state key.
func (a *agent) followState(ctx context.Context, id string) error {
	key := a.main.Keys().State(id)
	return a.main.Follow(ctx, cluster.Target{Key: key}, a.ownKey(func(u cluster.Update) {
		var seen *recovery.ModeRecord
		garbled := ""
		revision := u.Revision
		for _, kv := range u.Puts {
			revision = kv.ModRevision
			s, err := cluster.ParseState(kv.Value)
			if err != nil {
				garbled = err.Error()
				continue
			}
			seen = &recovery.ModeRecord{Mode: recovery.Mode(s.Mode), Reason: recovery.Reason(s.Reason), By: s.By}
		}
		guard := revision
		if len(u.Puts) == 0 {
			guard = 0
		}
		a.tell(ctx, func() {
			if id == a.ids.registered.now() { // else it was on its way when that changed
				a.stateSeen(seen, garbled, revision, guard, u.Revision)
			}
		})
	}), a.followError(ctx, "state"))
}

// followRegistration has the Registrar look as soon as the key is not as we left it.
func (a *agent) followRegistration(ctx context.Context, id string) error {
	key := a.main.Keys().Registration(id)
	return a.main.Follow(ctx, cluster.Target{Key: key}, a.ownKey(func(u cluster.Update) {
		if u.Full {
			a.tell(ctx, func() { a.storeSeen(u.Revision) })
		}
		seen := keySeen{id: id, revision: u.Revision}
		if len(u.Puts) > 0 {
			seen.kv = &u.Puts[len(u.Puts)-1]
			seen.revision = seen.kv.ModRevision
		}
		a.tell(ctx, func() { a.registrationSeen(seen) })
	}), a.followError(ctx, "registration"))
}

// needAssignments makes the assignments unknown until those of the id have been read at
// that revision of the store or later. While we were detached topics may have gone to
// others, and a watch may not know yet that it has been blind: what it told before must
// not be loaded under a registration that was confirmed since. Without an id they stay
// unknown: they are about to change hands, and are at both hands while they do.
func (a *agent) needAssignments(id string, revision int64) {
	a.assigning.Lock()
	defer a.assigning.Unlock()
	a.assignedFrom = revision
	if a.ownership != nil {
		a.ownership.ForgetWanted()
	}
	a.reconciler.ForgetAssigned()
	a.ids.assigned.follow(id)
}

// followAssignments keeps known which topics are assigned here.
func (a *agent) followAssignments(ctx context.Context, id string) error {
	t := cluster.Target{Key: a.main.Keys().Assignments(id), Prefix: true, KeysOnly: true}
	return a.main.Follow(ctx, t, a.inOrder(ctx, a.assignments(ctx, id)), a.followError(ctx, "assignments"))
}

// inOrder has updates of assignments that are older than those before them wait for the
// Registrar's word.
func (a *agent) inOrder(ctx context.Context, take func(cluster.Update)) func(cluster.Update) {
	known := int64(0)
	return func(u cluster.Update) {
		if u.Revision < known {
			a.awaitTakeUp(ctx)
		}
		known = u.Revision
		if ctx.Err() == nil {
			take(u)
		}
	}
}

// awaitTakeUp holds back what is listed in an etcd that is older than what was listed
// before, until the Registrar has looked at it: a backup was restored, and what it says
// of owners may be old.
func (a *agent) awaitTakeUp(ctx context.Context) {
	a.log.Warn("etcd went back in time: assignments are not taken up before the registration was looked at")
	done := make(chan struct{})
	a.tell(ctx, func() {
		a.heldBack = append(a.heldBack, func() { close(done) })
		a.keeper.Reestablish()
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// assignments takes up changes below this broker's key, and then looks at the topics' records.
func (a *agent) assignments(ctx context.Context, id string) func(cluster.Update) {
	return func(u cluster.Update) { a.noteRecords(ctx, a.assignmentsSeen(id, u)) }
}

// noteRecords keeps which fields of these topics' records do nothing, and tells of each once. A record
// that has none is not read again; what cannot be read now is by the next list.
func (a *agent) noteRecords(ctx context.Context, puts []string) {
	reader, reads := a.broker.(brokerapi.RecordReader)
	puts = slices.DeleteFunc(puts, func(topic string) bool { said, known := a.misspelt.Load(topic); return known && said == "" })
	if !reads || len(puts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, authProbeTimeout)
	defer cancel()
	records, err := a.main.Records(ctx, puts)
	for _, topic := range puts {
		if said := strings.Join(reader.Misspelt(records[topic]), "; "); err == nil {
			if was, known := a.misspelt.Swap(topic, said); said != "" && !(known && was == said) {
				a.log.Warn("topic record: "+said, "topic", topic)
			}
		}
	}
}

// assignmentsSeen takes up a change below this broker's key, and returns the topics that it assigns.
func (a *agent) assignmentsSeen(id string, u cluster.Update) (puts []string) {
	keys := a.main.Keys()
	since := make([]int64, 0, len(u.Puts))
	var strange []string
	for _, kv := range u.Puts {
		if _, topic, ok := keys.ParseAssignment(kv.Key); ok {
			puts, since = append(puts, topic), append(since, kv.CreateRevision)
		} else if _, isState := keys.ParseState(kv.Key); !isState {
			strange = append(strange, kv.Key)
		}
	}
	var deletes []string
	for _, key := range u.Deletes {
		if _, topic, ok := keys.ParseAssignment(key); ok {
			deletes = append(deletes, topic)
			a.misspelt.Delete(topic)
		}
	}
	a.assigning.Lock()
	defer a.assigning.Unlock()
	if id != a.ids.assigned.now() || u.Full && u.Revision < a.assignedFrom {
		return nil // read before we were registered; the next list is asked for already
	}
	a.setAssigned(u.Revision, u.Full, puts, deletes)
	a.noteIgnored(u, strange)
	if a.traits.LocalData {
		a.reconciler.SetSince(puts, since)
	}
	return puts
}

// noteIgnored keeps the keys that look like assignments and are none, and tells of each once.
func (a *agent) noteIgnored(u cluster.Update, puts []string) {
	was := a.ignoredKeys()
	now := slices.DeleteFunc(slices.Clone(was), func(key string) bool { return u.Full || slices.Contains(u.Deletes, key) })
	now = slices.Compact(slices.Sorted(slices.Values(append(now, puts...))))
	for _, key := range puts {
		if _, told := slices.BinarySearch(was, key); !told {
			a.log.Warn("assignment ignored: want "+a.assignmentForm(), "key", key)
			a.event(control.Event{Kind: "topics", To: "ignored", Detail: key + " does not name a topic: write " + a.assignmentForm()})
		}
	}
	a.ignored.Store(&now)
}

func (a *agent) ignoredKeys() (keys []string) {
	if known := a.ignored.Load(); known != nil {
		keys = *known
	}
	return keys
}

// assignmentForm is how an assignment to this broker is written.
func (a *agent) assignmentForm() string {
	return a.main.Keys().Assignment(a.ids.assigned.now(), "/NAMESPACE/TOPIC")
}

// followError logs a watch that failed; Follow tells only of changes.
func (a *agent) followError(ctx context.Context, what string) func(error) {
	return func(err error) {
		if ctx.Err() == nil {
			a.log.LogAttrs(ctx, slog.LevelWarn, "watch failed, listing again", slog.String("what", what),
				slog.String("class", classify(err)), slog.Any("err", err))
		}
	}
}
