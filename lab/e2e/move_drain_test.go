package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// Of all topics one cannot move. Refused, nothing is touched. Told to leave it, the drain moves the
// others with all they have, and says which stays, where it goes on being served, and why.
func TestADrainMovesAllTopicsButTheOneThatCannot(t *testing.T) {
	t.Parallel()
	drainAllButOne(t, 20, false)
}

// So it is with many, also where the sidecar is killed meanwhile.
func TestADrainOfAThousandTopicsOutlivesItsSidecar(t *testing.T) {
	long(t)
	drainAllButOne(t, 1000, true)
}

func drainAllButOne(t *testing.T, n int, kill bool) {
	const stays = "/default/memory"
	s := newTrio(t)
	_, err := s.etcd.Client().Put(s.ctx, s.keys.Prefix+"/topics"+stays, `{"storage":"memory"}`)
	s.ok(err)
	topics := []string{stays}
	for i := 2; i < n; i++ { // s.topic is there, too
		topics = append(topics, fmt.Sprintf("/default/t%04d", i))
	}
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics...))
	n1 := s.side("n1")
	_, err = n1.Await(s.ctx, 2*bound, "all topics to be served", func(st harness.Status) bool { return st.Topics.Served == n })
	s.ok(err)
	want := func(i int) int { return (i + 1) % 4 } // messages
	for i, topic := range topics {
		for range want(i) {
			_, err := harness.Publish(s.ctx, s.conns["n1"], topic, []byte("x"))
			s.ok(err)
		}
	}

	from := s.caughtUp()
	began := time.Now()
	res, err := n1.Verb(s.ctx, "drain", "--move")
	s.ok(err)
	if res.Exit != 3 || !strings.Contains(res.Stderr, "1 topic cannot be moved") || !strings.Contains(res.Stderr, "it is in memory") {
		t.Errorf("not told to leave it: exit code %d: %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	t.Logf("planned in %s", time.Since(began).Round(time.Millisecond))
	s.caughtUp()
	for _, c := range s.history.Changes() {
		if c.Revision > from && strings.HasPrefix(c.Key, s.keys.Prefix+"/cluster/") && !strings.Contains(c.Key, "/members/") {
			t.Errorf(harness.Violation+"written by what was refused: %v", c)
		}
	}

	began = time.Now()
	if kill {
		ended := make(chan struct{})
		go func() { // told nothing any more
			defer close(ended)
			_, _ = n1.Verb(s.ctx, "drain", "--move", "--leave-unmoved", "--reason", "new disk")
		}()
		n1.await("part of the topics to be gone", func(st harness.Status) bool { return st.Topics.Assigned > 0 && st.Topics.Assigned < n-n/10 })
		s.ok(n1.Kill())
		<-ended
		s.ok(n1.Start())
		n1.await("the drain to go on", func(st harness.Status) bool { return strings.Contains(st.Summary, "being moved away (new disk)") })
	}
	res, err = n1.Verb(s.ctx, "drain", "--move", "--leave-unmoved", "--reason", "new disk")
	s.ok(err)
	said := fmt.Sprintf("left  %s: ", stays)
	if res.Exit != 4 || !strings.Contains(res.Stdout, said) || !strings.Contains(res.Stdout, "it is in memory") ||
		!strings.Contains(res.Stderr, fmt.Sprintf("%d of %d topics moved, 1 left", n-1, n)) {
		t.Fatalf("exit code %d: %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	t.Logf("%d topics moved in %s", n-1, time.Since(began).Round(time.Millisecond))

	owners := s.owners()
	for i, topic := range topics {
		at := owners[topic]
		if len(at) != 1 || (at[0] == "n1") != (topic == stays) {
			t.Errorf("%s is assigned to %v", topic, at)
			continue
		}
		name, err := s.js[at[0]].StreamNameBySubject(s.ctx, harness.Subject(topic))
		s.ok(err)
		stream, err := s.js[at[0]].Stream(s.ctx, name)
		s.ok(err)
		if got := stream.CachedInfo().State; int(got.Msgs) != want(i) || int(got.LastSeq) != want(i) {
			t.Errorf(harness.Violation+"%s has %+v at %s, want %d messages", topic, got, at[0], want(i))
		}
		_, err = harness.Publish(s.ctx, s.conns[at[0]], topic, []byte("x"))
		s.ok(err)
	}
	if left := s.streams("n1"); len(left) != 1 {
		t.Errorf("n1 has the streams %v, want one", left)
	}
	if st := n1.await("the mode", func(st harness.Status) bool { return st.Mode != "" }); st.Mode != "active" {
		t.Errorf("n1 is %s", st.Mode)
	}

	// Nothing is left, so the broker is drained, and stays so.
	_, err = s.etcd.Client().Delete(s.ctx, s.keys.Assignment("n1", stays))
	s.ok(err)
	for range 2 {
		res, err := n1.Verb(s.ctx, "drain", "--move")
		s.ok(err)
		if res.Exit != 0 || !strings.Contains(res.Stdout, "/s of the last moves") {
			t.Errorf("exit code %d: %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	}
	n1.await("to be drained", func(st harness.Status) bool { return st.Mode == "drained" && strings.HasPrefix(st.Reason, "operator") })
}

// owners are those to whom each topic is assigned.
func (s *trio) owners() map[string][]string {
	s.Helper()
	prefix := s.keys.Prefix + "/cluster/brokers/"
	res, err := s.etcd.Client().Get(s.ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	s.ok(err)
	all := map[string][]string{}
	for _, kv := range res.Kvs {
		id, topic, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
		if topic = "/" + topic; ok && strings.Count(topic, "/") == 2 {
			all[topic] = append(all[topic], id)
		}
	}
	for _, ids := range all {
		slices.Sort(ids)
	}
	return all
}
