package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// lockedTopics is etcd's locks, and a broker that remembers whom it has read.
type lockedTopics struct {
	revision int64
	locks    map[string]TopicOwner
	cache    map[string]string // of the broker
	blind    bool              // its cache is told of nothing
	silent   map[string]bool   // it says nothing about these
	asked    []string
	during   func() // happens while it is asked
	err      error
	lists    int   // how often the locks were listed
	more     int64 // locks that are not here
}

func newLockedTopics() *lockedTopics {
	return &lockedTopics{locks: map[string]TopicOwner{}, cache: map[string]string{}, silent: map[string]bool{}}
}

func (l *lockedTopics) give(topic, owner string) {
	l.revision++
	if l.locks[topic] = (TopicOwner{topic, owner, l.revision}); owner == "" {
		delete(l.locks, topic)
	}
	if !l.blind {
		delete(l.cache, topic)
	}
}

func (l *lockedTopics) RecentOwners(_ context.Context, limit int) (recent []TopicOwner, count int64, err error) {
	l.lists++
	all := slices.SortedFunc(maps.Values(l.locks), func(a, b TopicOwner) int { return int(b.Revision - a.Revision) })
	return all[:min(limit, len(all))], int64(len(all)) + l.more, l.err
}

func (l *lockedTopics) OwnersOf(_ context.Context, topics []string) (map[string]TopicOwner, error) {
	found := map[string]TopicOwner{}
	for _, topic := range topics {
		found[topic] = TopicOwner{Topic: topic}
		if lock, ok := l.locks[topic]; ok {
			found[topic] = lock
		}
	}
	return found, nil
}

func (l *lockedTopics) Owners(_ context.Context, topics []string) (map[string]string, error) {
	told := map[string]string{}
	for _, topic := range topics {
		l.asked = append(l.asked, topic)
		if l.silent[topic] {
			continue
		}
		if _, cached := l.cache[topic]; !cached {
			l.cache[topic] = l.locks[topic].Owner
		}
		told[topic] = l.cache[topic]
	}
	if during := l.during; during != nil {
		l.during = nil
		during()
	}
	return told, nil
}

func TestABrokerThatNamesFormerOwnersDiffers(t *testing.T) {
	type step struct {
		do   func(*lockedTopics)
		want string // differences
	}
	give := func(topic, owner string) func(*lockedTopics) {
		return func(l *lockedTopics) { l.give(topic, owner) }
	}
	quiet := func(*lockedTopics) {}
	goesBlind := func(l *lockedTopics) { l.blind = true }
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"what moves and is seen", []step{{give("/n/a", "x"), "[]"}, {give("/n/a", "y"), "[]"}, {give("/n/a", ""), "[]"}, {give("/n/a", "me"), "[]"}}},
		{"what moves and is not seen", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"}, {give("/n/a", "y"), "[/n/a (it names x)]"}, {quiet, "[/n/a (it names x)]"},
			{give("/n/a", "z"), "[/n/a (it names x)]"}, {give("/n/a", "x"), "[]"}}},
		{"what nobody owns any more", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"}, {give("/n/a", ""), "[/n/a (it names x)]"}, {quiet, "[/n/a (it names x)]"},
			{func(l *lockedTopics) { l.cache = map[string]string{} }, "[]"}}},
		{"a topic that came while it was blind", []step{{goesBlind, "[]"}, {give("/n/a", "x"), "[]"}, {give("/n/a", "y"), "[/n/a (it names x)]"}}},
		{"it is not known to be owned at all", []step{{func(l *lockedTopics) { l.cache["/n/a"], l.blind = "", true }, "[]"}, {give("/n/a", "x"), "[/n/a (it names nobody)]"},
			{give("/n/a", ""), "[]"}}},
		{"it serves what is another's", []step{{give("/n/a", "me"), "[]"}, {goesBlind, "[]"}, {give("/n/a", "y"), "[]"}, {quiet, "[]"}}},
		{"one among several", []step{{give("/n/a", "x"), "[]"}, {give("/n/b", "x"), "[]"}, {goesBlind, "[]"}, {give("/n/b", "y"), "[/n/b (it names x)]"}, {give("/n/a", "x"), "[/n/b (it names x)]"}}},
		{"it moves while the broker is asked", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"},
			{func(l *lockedTopics) { l.give("/n/a", "y"); l.during = func() { l.give("/n/a", "z") } }, "[]"}, {quiet, "[/n/a (it names x)]"}}},
		{"it goes while the broker is asked", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"},
			{func(l *lockedTopics) { l.give("/n/a", "y"); l.during = func() { l.give("/n/a", "") } }, "[]"}, {quiet, "[/n/a (it names x)]"}}},
		{"it says nothing of what agreed", []step{{give("/n/a", "x"), "[]"}, {func(l *lockedTopics) { l.silent["/n/a"] = true; l.give("/n/a", "y") }, "[]"}}},
		{"it says nothing any more of what differed", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"}, {give("/n/a", "y"), "[/n/a (it names x)]"},
			{func(l *lockedTopics) { l.silent["/n/a"] = true }, "[/n/a (it names x)]"},
			{func(l *lockedTopics) { l.silent["/n/a"] = false }, "[/n/a (it names x)]"}}},
		{"it says nothing any more of what is gone", []step{{give("/n/a", "x"), "[]"}, {goesBlind, "[]"}, {give("/n/a", ""), "[/n/a (it names x)]"},
			{func(l *lockedTopics) { l.silent["/n/a"] = true }, "[/n/a (it names x)]"}, {quiet, "[/n/a (it names x)]"}, {quiet, "[]"}, {quiet, "[]"}}},
		{"it says nothing of one that differed, and names another wrongly", []step{{give("/n/a", "x"), "[]"}, {give("/n/b", "x"), "[]"}, {goesBlind, "[]"},
			{give("/n/a", "y"), "[/n/a (it names x)]"}, {func(l *lockedTopics) { l.silent["/n/a"] = true; l.give("/n/b", "y") }, "[/n/a (it names x) /n/b (it names x)]"}}},
		{"etcd does not answer", []step{{func(l *lockedTopics) { l.err = errors.New("away") }, "away"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLockedTopics()
				v := &OwnersView{Self: func() string { return "me" }, Store: l, Broker: l}
				for i, s := range row.steps {
					s.do(l)
					is, believed, err := v.Compare(t.Context(), ViewOrders{Epoch: 1})
					got := fmt.Sprint(is)
					if err != nil {
						got = err.Error()
					}
					if got != s.want || len(believed) > 0 {
						t.Fatalf("step %d: %s, %v; want %s", i, got, believed, s.want)
					}
					passes(viewLook)
				}
			})
		})
	}
}

// To list the locks of a large cluster costs etcd much: between two lists those are looked at that are known.
func TestTheLocksOfALargeClusterAreListedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLockedTopics()
		l.more = 100_000
		v := NewViewer(&OwnersView{Self: func() string { return "me" }, Store: l, Broker: l}, 30*time.Second, 0, discard())
		v.SetOrders(ViewOrders{Epoch: 1, Attached: true})
		look := func() { v.look(t.Context()); passes(viewLook) }
		for n := range 10 {
			l.give(fmt.Sprintf("/n/%d", n), "x")
		}
		look()
		l.blind, l.asked = true, nil
		look()
		l.give("/n/0", "y")
		l.give("/n/1", "")
		for range 6 {
			look()
		}
		if l.lists != 1 || v.View().Stale || len(l.asked) != 6*2 {
			t.Errorf("%d lists, %d questions, %+v", l.lists, len(l.asked), v.View())
		}
		look()
		if !v.View().Stale || v.View().Count != 2 {
			t.Errorf("%+v", v.View())
		}
		for range 60 {
			look()
		}
		if l.lists != 2 {
			t.Errorf("%d lists in more than two minutes of 100,000 locks", l.lists)
		}
	})
}

// A broker that believes a topic to be its own could own it again by being asked.
func TestABrokerIsNotAskedAboutWhatWasItsOwn(t *testing.T) {
	l := newLockedTopics()
	v := &OwnersView{Self: func() string { return "me" }, Store: l, Broker: l}
	compare := func() {
		t.Helper()
		if is, _, err := v.Compare(t.Context(), ViewOrders{}); len(is) > 0 || err != nil {
			t.Fatalf("%v, %v", is, err)
		}
	}
	l.give("/n/a", "me")
	compare()
	l.blind, l.asked = true, nil
	l.give("/n/a", "")
	compare()
	if len(l.asked) > 0 {
		t.Errorf("it was asked about %v", l.asked)
	}
}

func TestABrokerIsAskedOnceAboutEachOwnerAndAboutFewAtATime(t *testing.T) {
	synctest.Test(t, askedOnce)
}

func askedOnce(t *testing.T) {
	l := newLockedTopics()
	v := &OwnersView{Self: func() string { return "me" }, Store: l, Broker: l}
	for n := range 2 * ownersRead {
		l.give(fmt.Sprintf("/n/%d", n), "x")
	}
	looks := func(n, want int) {
		t.Helper()
		l.asked = nil
		for range n {
			passes(viewLook)
			before := len(l.asked)
			if is, _, err := v.Compare(t.Context(), ViewOrders{}); len(is) > 0 || err != nil {
				t.Fatalf("%v, %v", is, err)
			}
			if asked := len(l.asked) - before; asked > ownersAsked {
				t.Fatalf("%d questions at one look", asked)
			}
		}
		if len(l.asked) != want || len(v.known) > ownersRead+ownersAsked {
			t.Errorf("%d questions, want %d; %d are remembered", len(l.asked), want, len(v.known))
		}
	}
	looks(10, ownersRead)
	l.give("/n/0", "y")
	looks(10, 1)
	if _, _, err := v.Compare(t.Context(), ViewOrders{Instance: "another"}); err != nil || len(l.asked) != 1+ownersAsked {
		t.Errorf("another process was asked %d questions, %v", len(l.asked)-1, err)
	}
}

// Topics that move all the while are looked at between their owners: no look in a row sees the
// same difference for long.
func TestTopicsThatMoveAllTheWhileMakeNoBrokerBlind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLockedTopics()
		v := NewViewer(&OwnersView{Self: func() string { return "me" }, Store: l, Broker: l}, 30*time.Second, 0, discard())
		owners := []string{"x", "y", "", "z", "me"}
		v.SetOrders(ViewOrders{Epoch: 1, Attached: true})
		for n := range 1000 {
			topic := fmt.Sprintf("/n/%d", n%7)
			before := l.cache[topic]
			if l.give(topic, owners[n%len(owners)]); n%3 > 0 { // seen late, by the next look but one
				l.cache[topic] = before
			}
			v.look(t.Context())
			passes(2 * time.Second)
			delete(l.cache, topic)
			if v.View().Stale {
				t.Fatalf("%s", v.View().Detail())
			}
		}
	})
}
