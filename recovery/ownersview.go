package recovery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	// ownersRead is how many locks are read at each look: those that changed last.
	ownersRead = 256
	// ownersAsked is how many topics the broker is asked about at one look, one after another.
	ownersAsked = 64
	// lockPace is how long no list is read again, for each lock of the cluster: etcd looks at
	// all of them to tell which changed last.
	lockPace = time.Millisecond
	// silences is how often the broker is asked about a topic without a lock that it says nothing of.
	silences = 3
)

// TopicOwner is who owns a topic by its lock in etcd. Revision 0: nobody does.
type TopicOwner struct {
	Topic, Owner string
	Revision     int64
}

// OwnersStore reads the locks of all brokers.
type OwnersStore interface {
	// RecentOwners are of the locks that changed last, the newest first, at most so many of all.
	RecentOwners(ctx context.Context, limit int) (recent []TopicOwner, all int64, err error)
	// OwnersOf reads the locks of these topics. One that nobody holds is in the map, and one that
	// cannot be read is not.
	OwnersOf(ctx context.Context, topics []string) (map[string]TopicOwner, error)
}

// OwnersBroker is brokerapi.OwnerTeller.
type OwnersBroker interface {
	Owners(ctx context.Context, topics []string) (map[string]string, error)
}

// OwnersView is a ViewSource for brokers that share their topics by locks and remember whose
// they are. One whose watches have died names owners that are none any more: it sends clients
// there, and takes no topic that it believes to be another's.
//
// The broker is asked once about each version of a lock, and again only while it differs: to be
// asked can make it remember. When a lock goes and has no successor, the broker is asked if it had named
// another as the owner; a broker that had named itself could own the topic again by being asked.
//
// Guaranteed: a lock that changed while the broker was asked says nothing; what the broker
// does not tell says nothing, and clears nothing.
//
// Not guaranteed: that a topic is seen whose lock was not among the ownersRead that changed last, or
// was gone before the first look.
type OwnersView struct {
	Self   func() string // the broker's id in locks
	Store  OwnersStore
	Broker OwnersBroker

	under ViewOrders
	known map[string]knownOwner
	due   time.Time // to read the list again
}

// knownOwner is what the broker said of a topic when it was asked last.
type knownOwner struct {
	lock    TopicOwner // as it was then; zero: it changed meanwhile
	named   string
	differs bool
	silent  int // how often it was asked since, and did not say
}

func (k knownOwner) settled(now TopicOwner) bool { return k.lock == now && k.named == now.Owner }

// Compare implements ViewSource.
func (v *OwnersView) Compare(ctx context.Context, under ViewOrders) (is, believed []string, err error) {
	if under != v.under || v.known == nil {
		v.under, v.known, v.due = under, map[string]knownOwner{}, time.Time{}
	}
	ask, err := v.choose(ctx)
	if err != nil || len(ask) == 0 {
		return nil, nil, err
	}
	topics := make([]string, len(ask))
	for i, lock := range ask {
		topics[i] = lock.Topic
	}
	named, err := v.Broker.Owners(ctx, topics)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the broker who owns what: %w", err)
	}
	after, err := v.Store.OwnersOf(ctx, topics)
	if err != nil {
		return nil, nil, err
	}
	for _, lock := range ask {
		name, told := named[lock.Topic]
		switch {
		case !told:
			known, ok := v.known[lock.Topic]
			known.silent++
			switch {
			case !ok:
			case lock.Revision == 0 && known.silent >= silences: // split, or of a namespace that is gone
				delete(v.known, lock.Topic)
				continue
			default:
				v.known[lock.Topic] = known
			}
			if known.differs { // as it was
				is = append(is, different(lock.Topic, known.named))
			}
		case after[lock.Topic] != lock:
			v.known[lock.Topic] = knownOwner{named: name}
		case name == v.Self() && lock.Revision != 0 && lock.Owner != name: // it serves another's: the ownership tells that
			v.known[lock.Topic] = knownOwner{named: name}
		case name == lock.Owner && lock.Revision == 0:
			delete(v.known, lock.Topic)
		case name == lock.Owner:
			v.known[lock.Topic] = knownOwner{lock: lock, named: name}
		default:
			v.known[lock.Topic] = knownOwner{lock: lock, named: name, differs: true}
			// The name is part of it: who names another one each time does see changes.
			is = append(is, different(lock.Topic, name))
		}
	}
	return is, nil, nil
}

func different(topic, named string) string {
	return fmt.Sprintf("%s (it names %s)", topic, cmp.Or(named, "nobody"))
}

// choose is what to ask about: first what differed.
func (v *OwnersView) choose(ctx context.Context) ([]TopicOwner, error) {
	var recent []TopicOwner
	listed := !time.Now().Before(v.due)
	if listed {
		var all int64
		var err error
		if recent, all, err = v.Store.RecentOwners(ctx, ownersRead); err != nil {
			return nil, err
		}
		v.due = time.Now().Add(time.Duration(all) * lockPace)
	}
	kept := map[string]bool{}
	var differed, ask []TopicOwner
	consider := func(lock TopicOwner) {
		switch known := v.known[lock.Topic]; {
		case known.differs:
			differed = append(differed, lock)
		case !known.settled(lock):
			ask = append(ask, lock)
		}
		kept[lock.Topic] = true
	}
	for _, lock := range recent {
		consider(lock)
	}
	var absent []string
	for _, topic := range slices.Sorted(maps.Keys(v.known)) {
		if !kept[topic] {
			absent = append(absent, topic)
		}
	}
	now, err := v.Store.OwnersOf(ctx, absent)
	if err != nil {
		return nil, err
	}
	for _, topic := range absent {
		lock, readable := now[topic]
		known, gone := v.known[topic], lock.Revision == 0
		switch {
		case !readable:
		case gone && known.named != v.Self(), !gone && !known.settled(lock):
			consider(lock)
		case !gone && !listed: // it is as it was; else others changed later
			kept[topic] = true
		}
	}
	ask = append(differed, ask...)
	ask = ask[:min(len(ask), ownersAsked)]
	maps.DeleteFunc(v.known, func(topic string, _ knownOwner) bool { return !kept[topic] })
	return ask, nil
}
