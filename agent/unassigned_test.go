package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
)

// assignedIs tells what a list of the keys below the broker's has.
func (l *sidecarLife) assignedIs(keys ...string) {
	u := cluster.Update{Full: true, Revision: 100}
	for _, key := range keys {
		u.Puts = append(u.Puts, cluster.KV{Key: "/p/cluster/brokers/n1/" + key})
	}
	l.inLoop(func() {
		l.main = cluster.Over(cluster.Config{Prefix: "/p"}, nil, nil)
		l.ids.assigned.follow("n1")
		l.assignmentsSeen("n1", u)
	})
	l.until(l.age() + time.Minute)
}

// told is how many events of topics there are with that word.
func (l *sidecarLife) toldOf(to string) int { return strings.Count(l.why("topics")+" ", to+":") }

func TestAKeyThatNamesNoTopicIsShownUntilItIsGone(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		for range 3 { // as each list says again
			l.assignedIs("payments", "shop/eu/orders", "state", telltale[1:])
		}
		const want = "; 2 keys ignored (/p/cluster/brokers/n1/payments): no assignment, want /p/cluster/brokers/n1/NAMESPACE/TOPIC; see 'holdfast topics'."
		if s := l.status(); s.Topics.Ignored != 2 || !strings.HasSuffix(s.Summary, "serves 1 topic"+want) || s.Severity != "warning" {
			t.Errorf("%d ignored, %s: %s", s.Topics.Ignored, s.Severity, s.Summary)
		}
		list := l.topics()
		if last := list[len(list)-1]; len(list) != 3 || last.Topic != "/p/cluster/brokers/n1/shop/eu/orders" || last.State != "ignored" ||
			last.Error != "this key is no assignment: write /p/cluster/brokers/n1/NAMESPACE/TOPIC, and delete this one" {
			t.Errorf("%+v", list)
		}
		if n := l.toldOf("ignored"); n != 2 {
			t.Errorf("told %d times of two keys", n)
		}
		l.inLoop(func() {
			l.assignmentsSeen("n1", cluster.Update{Revision: 101, Deletes: []string{"/p/cluster/brokers/n1/payments", "/p/cluster/brokers/n1/shop/eu/orders"}})
		})
		if s := l.status(); s.Topics.Ignored != 0 || len(l.topics()) != 1 || s.Severity != "ok" {
			t.Errorf("%d ignored: %s", s.Topics.Ignored, s.Summary)
		}
		l.assignedIs("payments", telltale[1:])
		if n := l.toldOf("ignored"); n != 3 {
			t.Errorf("one that comes back is told %d times in all, want 3", n)
		}
	})
}

func TestWhatIsQuarantinedSaysWhyAndWhatToDoAndIsToldOnce(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		l.assignedIs(telltale[1:])
		l.assignedIs()
		form := "/p/cluster/brokers/n1"
		if s := l.status(); !strings.HasSuffix(s.Summary, fmt.Sprintf("serves 0 topics; 1 quarantined: no assignment; put %s/NAMESPACE/TOPIC for what no other broker has, delete the rest with the broker's own tools; see 'holdfast topics'.", form)) ||
			s.Severity != "warning" {
			t.Errorf("%s: %s", s.Severity, s.Summary)
		}
		if list := l.topics(); len(list) != 1 || list[0].State != "quarantined" || list[0].Error != "no assignment; if no other broker has it: etcdctl put "+form+telltale+" null; if another has its data, or nobody wants it: delete it with the broker's own tools" {
			t.Errorf("%+v", list)
		}
		beside := l.reconciler.Snapshot()
		if beside.Served = 1; l.meantElsewhere(beside) {
			t.Error("beside what is served, what went to another broker is trouble")
		}
		l.set(func() { l.ended = true })
		l.until(l.age() + 10*time.Second)
		l.start()
		l.until(l.age() + time.Minute)
		if n := l.toldOf("quarantined"); n != 1 {
			t.Errorf("told %d times of one quarantine, over a restart of the broker: %s", n, l.why("topics"))
		}
	})
}

// reads is a broker that knows the fields of records.
type reads struct{ brokerapi.Broker }

func (reads) Misspelt(record []byte) []string {
	if strings.Contains(string(record), "max_age\"") {
		return []string{`"max_age" does nothing: did you mean max_age_seconds?`}
	}
	return nil
}

// It is shown where the topic stands, until the record is mended or the topic goes elsewhere. A record that was
// right is not read again.
func TestAFieldOfARecordThatDoesNothingIsShown(t *testing.T) {
	a, store := built(t), etcd.New(etcd.Config{})
	a.broker, a.main = reads{stillBroker{}}, cluster.Over(cluster.Config{}, store.Conn(nil), nil)
	defer a.main.Close()
	put := func(topic, record string) {
		t.Helper()
		if _, err := store.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("/topics" + topic), Value: []byte(record)}); err != nil {
			t.Fatal(err)
		}
	}
	const bad, good = `{"max_age":86400}`, `{"max_age_seconds":86400}`
	a.ids.assigned.follow("n1")
	look := func(full bool, deleted string, topics ...string) {
		u := cluster.Update{Full: full, Revision: 100}
		for _, topic := range topics {
			u.Puts = append(u.Puts, cluster.KV{Key: "/cluster/brokers/n1" + topic})
		}
		if deleted != "" {
			u.Deletes = []string{"/cluster/brokers/n1" + deleted}
		}
		a.assignments(t.Context(), "n1")(u)
	}
	shown := func(want ...string) {
		t.Helper()
		var said []string
		for _, topic := range a.topics() {
			if strings.Contains(topic.Error, "does nothing") {
				_, its, _ := strings.Cut(topic.Error, "; ") // why it is not served comes first
				said = append(said, topic.Topic+": "+its)
			}
		}
		for i, topic := range want {
			want[i] = topic + ": its record, /topics" + topic + `: "max_age" does nothing: did you mean max_age_seconds?`
		}
		if n := a.status().Topics.Misspelt; n != len(want) || !slices.Equal(said, want) {
			t.Errorf("%d: %q, want %q", n, said, want)
		}
	}
	put("/n/a", bad)
	put("/n/b", good)
	look(true, "", "/n/a", "/n/b", "/n/none")
	shown("/n/a")
	put("/n/b", bad) // it is served as the one before asked
	look(true, "", "/n/a", "/n/b", "/n/none")
	shown("/n/a")
	put("/n/c", bad)
	look(false, "", "/n/c")
	shown("/n/a", "/n/c")
	put("/n/a", good)
	look(true, "", "/n/a", "/n/b", "/n/c")
	shown("/n/c")
	look(false, "/n/c")
	shown()
}
