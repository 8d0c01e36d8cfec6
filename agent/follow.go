package agent

import (
	"context"
	"log/slog"
	"sync"

	"holdfast/cluster"
	"holdfast/recovery"
)

// followState keeps the loop informed of the broker's state key.
func (a *agent) followState(ctx context.Context) error {
	key := a.main.Keys().State(a.brokerID)
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
		a.tell(ctx, func() { a.stateSeen(seen, garbled, revision, guard) })
	}), a.followError(ctx, "state"))
}

// followRegistration has the Registrar look as soon as the key is not as we left it.
func (a *agent) followRegistration(ctx context.Context) error {
	key := a.main.Keys().Registration(a.brokerID)
	return a.main.Follow(ctx, cluster.Target{Key: key}, a.ownKey(func(u cluster.Update) {
		if u.Full {
			a.tell(ctx, func() { a.storeSeen(u.Revision) })
		}
		if len(u.Puts) == 0 {
			a.tell(ctx, func() { a.registrationSeen(nil, u.Revision) })
			return
		}
		kv := u.Puts[len(u.Puts)-1]
		a.tell(ctx, func() { a.registrationSeen(&kv, kv.ModRevision) })
	}), a.followError(ctx, "registration"))
}

// needAssignments makes the assignments unknown until they have been read at that
// revision of the store or later. While we were detached topics may have gone to others,
// and a watch may not know yet that it has been blind: what it told before must not be
// loaded under a registration that was confirmed since.
func (a *agent) needAssignments(revision int64) {
	a.assigning.Lock()
	defer a.assigning.Unlock()
	a.assignedFrom = revision
	if a.ownership != nil {
		a.ownership.ForgetWanted()
	}
	a.reconciler.ForgetAssigned()
	select {
	case a.relist <- struct{}{}:
	default:
	}
}

// relisting follows the assignments, and lists them anew whenever that is asked for.
func (a *agent) relisting(follow func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			following, stop := context.WithCancel(ctx)
			var asked sync.WaitGroup
			asked.Go(func() {
				select {
				case <-a.relist:
					stop()
				case <-following.Done():
				}
			})
			err := follow(following)
			again := following.Err() != nil && ctx.Err() == nil
			stop()
			asked.Wait()
			if !again {
				return err
			}
		}
	}
}

// followAssignments keeps known which topics are assigned here.
func (a *agent) followAssignments(ctx context.Context) error {
	t := cluster.Target{Key: a.main.Keys().Assignments(a.brokerID), Prefix: true, KeysOnly: true}
	return a.main.Follow(ctx, t, a.inOrder(ctx, a.assignmentsSeen), a.followError(ctx, "assignments"))
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

// assignmentsSeen takes up a change below this broker's key.
func (a *agent) assignmentsSeen(u cluster.Update) {
	keys := a.main.Keys()
	puts := make([]string, 0, len(u.Puts))
	for _, kv := range u.Puts {
		if _, topic, ok := keys.ParseAssignment(kv.Key); ok {
			puts = append(puts, topic)
		} else if _, isState := keys.ParseState(kv.Key); !isState {
			a.ignored(kv.Key)
		}
	}
	var deletes []string
	for _, key := range u.Deletes {
		if _, topic, ok := keys.ParseAssignment(key); ok {
			deletes = append(deletes, topic)
		}
	}
	a.assigning.Lock()
	defer a.assigning.Unlock()
	if u.Full && u.Revision < a.assignedFrom {
		return // read before we were registered; the next list is asked for already
	}
	a.setAssigned(u.Full, puts, deletes)
}

// ignored tells of a key that looks like an assignment and is none.
func (a *agent) ignored(key string) {
	a.log.Warn("assignment ignored: want /cluster/brokers/ID/NAMESPACE/TOPIC", "key", key)
	a.event(Event{Kind: "topics", To: "ignored", Detail: key + " does not name a topic as /namespace/topic"})
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
