package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/agent/moving"
	"holdfast/lab/harness"
	"holdfast/lab/linear"
	"holdfast/recovery/moves"
)

// A topic goes to another server under load: what was acknowledged is there once, where it was
// said to be; the consumer goes on where it stood, pending messages included; the receipt says so.
func TestATopicMovesBetweenServersUnderLoad(t *testing.T) {
	t.Parallel()
	s := newTrio(t)
	p := s.produce(100)
	p.awaitMore(100, "n1")
	r := s.read(60, func(i int) bool { return i > 5 && i%6 == 0 })
	before, err := s.js["n1"].Consumer(s.ctx, s.stream, durable)
	s.ok(err)
	floor := before.CachedInfo().AckFloor.Stream
	pending := r.pending()
	from := s.caughtUp()

	res, m := s.unload("n1", s.topic, "--to", "n2", "--reason", "new disks")
	if res.Exit != 0 || m.Phase != moves.Done {
		t.Fatalf("exit code %d, %s: %s %s", res.Exit, m.Phase, res.Stderr, s.journal())
	}
	t.Logf("moved in %s: %s", m.Since[moves.Done].Sub(m.At), strings.Join(m.Receipt(), "\n"))
	p.awaitMore(50, "n2")
	p.stop()
	s.servedBy("n2")
	if left := s.streams("n1"); len(left) != 0 {
		t.Errorf("n1 has the streams %v, want none", left)
	}
	r.finish("n2")
	p.allAt("n2")

	sealed := m.Sealed
	switch {
	case sealed == nil || m.Copied == nil || m.Served == nil || m.Same == nil:
		t.Fatalf("the receipt does not say everything: %s", res.Stdout)
	case sealed.Count != sealed.Last || sealed.First != 1:
		t.Errorf("sealed %+v, want all from 1 to %d", sealed, sealed.Last)
	case m.Copied.First != sealed.First || m.Copied.Last != sealed.Last || m.Copied.Count != sealed.Count ||
		m.Copied.Bytes != sealed.Bytes || m.Copied.Config != sealed.Config:
		t.Errorf("copied %+v, sealed %+v", m.Copied, sealed)
	case m.Same.Compared != sealed.Count || m.Same.Differs != "" || m.Same.Gone != 0 || m.Same.Hash == "" || m.Same.Synced == "":
		t.Errorf("compared %+v, want all %d", m.Same, sealed.Count)
	case sealed.Floors[durable] != floor || m.Copied.Floors[durable] != floor || m.Served.Floors[durable] != floor:
		t.Errorf("the consumer stands at %d; sealed %v, copied %v, resumed %v", floor, sealed.Floors, m.Copied.Floors, m.Served.Floors)
	case m.From != "n1" || m.To != "n2" || m.By != "new disks" || sealed.Rests == "":
		t.Errorf("%+v", m)
	}
	for _, a := range p.acks() {
		if !a.Dup && (a.Seq > sealed.Last) != (a.by == "n2") {
			t.Errorf("%d was taken by %s; sealed at %d", a.Seq, a.by, sealed.Last)
		}
	}
	if n := r.again(); n > pending {
		t.Errorf("%d messages were given twice, and %d were not acknowledged", n, pending)
	}
	// One transaction gives it away.
	_, switched := s.awaitPhase(from, in(moves.Switched), "switched")
	var with []string
	for _, c := range s.history.At(switched.Revision) {
		with = append(with, c.Key)
	}
	for _, key := range []string{s.keys.Assignment("n1", s.topic), s.keys.Assignment("n2", s.topic)} {
		if !slices.Contains(with, key) {
			t.Errorf("the handover changed %v; want %s too", with, key)
		}
	}
	for _, c := range s.brokers {
		if all := s.moves(c.id); len(all) != 1 || all[0].ID != m.ID || all[0].Topic != s.topic || all[0].Phase != moves.Done {
			t.Errorf("%s lists %+v", c.id, all)
		}
		receipt, err := c.Verb(s.ctx, "moves", m.ID)
		s.ok(err)
		if receipt.Exit != 0 || !strings.Contains(receipt.Stdout, m.Same.Hash) {
			t.Errorf("%s, exit code %d: %s", c.id, receipt.Exit, receipt.Stdout)
		}
	}
	n1 := s.side("n1").await("no topic", func(st harness.Status) bool { return st.Topics.Assigned == 0 })
	if got := n1.Topics; got.Orphan+got.Quarantined+got.Missing+got.Served != 0 || !n1.Ready.OK {
		t.Errorf("n1 after the move: %s", n1)
	}
}

// What cannot be done is said, with the exit code for it, before anything is touched.
func TestUnloadRefusesWhatCannotBeDone(t *testing.T) {
	long(t)
	s := newTrio(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n2", "/default/theirs"))
	s.side("n2").serves("/default/theirs")
	if res, err := s.side("n3").Verb(s.ctx, "drain", "--reason", "e2e"); err != nil || res.Exit != 0 {
		t.Fatalf("drain: %+v, %v", res, err)
	}
	r := s.read(1, nil)
	from := s.caughtUp()
	for _, tt := range []struct {
		name, at string
		args     []string
		exit     int
		want     string
	}{
		{"no topic", "n1", []string{}, 2, "TOPIC"},
		{"a name that is none", "n1", []string{"orders"}, 2, "/namespace/topic"},
		{"unknown topic", "n1", []string{"/default/other"}, 3, "holdfast topics"},
		{"another broker's topic", "n1", []string{"/default/theirs"}, 3, "assigned to n2"},
		{"to itself", "n1", []string{s.topic, "--to", "n1"}, 3, "there already"},
		{"to nobody", "n1", []string{s.topic, "--to", "n9"}, 3, "holdfast fleet"},
		{"to who is drained", "n1", []string{s.topic, "--to", "n3"}, 3, "holdfast activate"},
	} {
		res, _ := s.unload(tt.at, tt.args...)
		if res.Exit != tt.exit || !strings.Contains(res.Stderr, tt.want) {
			t.Errorf("%s: exit code %d, want %d, with %q in: %s", tt.name, res.Exit, tt.exit, tt.want, res.Stderr)
		}
	}
	res, plan := s.unload("n1", s.topic, "--dry-run")
	if e := plan.Planned; res.Exit != 0 || plan.ID != "" || plan.From != "n1" || plan.To != "n2" ||
		e == nil || e.Count == 0 || e.Bytes == 0 || e.Rests == "" {
		t.Errorf("dry run: exit code %d: %s", res.Exit, res.Stdout)
	}

	// An application waits for messages.
	c, err := s.js["n1"].Consumer(s.ctx, s.stream, durable)
	s.ok(err)
	messages, err := c.Messages(jetstream.PullMaxMessages(1))
	s.ok(err)
	defer messages.Stop()
	go func() {
		for {
			if _, err := messages.Next(); err != nil {
				return
			}
		}
	}()
	s.awaitThat("the consumer to wait", func() bool {
		info, err := c.Info(s.ctx)
		return err == nil && info.NumWaiting > 0
	})
	if res, _ := s.unload("n1", s.topic); res.Exit != 3 || !strings.Contains(res.Stderr, "--force") {
		t.Errorf("with a consumer at work: exit code %d: %s", res.Exit, res.Stderr)
	}
	s.caughtUp()
	for _, c := range s.history.Changes() {
		if c.Revision > from && (strings.HasPrefix(c.Key, s.keys.Move("")) || strings.HasSuffix(c.Key, s.topic)) {
			t.Errorf(harness.Violation+"written by what was refused: %v", c)
		}
	}
	s.servedBy("n1")
	if res, m := s.unload("n1", s.topic, "--force"); res.Exit != 0 || m.To != "n2" {
		t.Fatalf("forced: exit code %d: %s %s", res.Exit, res.Stderr, s.journal())
	}
	messages.Stop()
	s.servedBy("n2")
	if res, _ := s.unload("n1", s.topic); res.Exit != 3 || !strings.Contains(res.Stderr, "assigned to n2") {
		t.Errorf("moved, and unloaded again: exit code %d: %s", res.Exit, res.Stderr)
	}
	r.finish("n2")
	if res, m := s.unload("n2", s.topic); res.Exit != 0 || m.To != "n1" {
		t.Fatalf("back: exit code %d: %s", res.Exit, res.Stderr)
	}
	s.servedBy("n1")
	if left := s.streams("n2"); len(left) != 1 {
		t.Errorf("n2 has %v, want its own stream", left)
	}
}

// A move that is called off while it copies leaves everything as it was. Asked for twice, it is one.
func TestAMoveIsCalledOffWhileItCopies(t *testing.T) {
	long(t)
	s := newTrio(t, "--move-rate", "1000000")
	s.fill(160, 1<<17)
	p := s.produce(100)
	p.awaitMore(10, "n1")
	r := s.read(20, func(i int) bool { return i%2 == 0 })
	from := s.caughtUp()
	type end struct {
		harness.Result
		moving.Shown
	}
	ends := make(chan end)
	for range 2 {
		go func() {
			res, m := s.unload("n1", s.topic, "--to", "n2")
			ends <- end{res, m}
		}()
	}
	m, _ := s.awaitPhase(from, func(m moves.Move) bool { return m.Phase == moves.Sealed && m.Moved > 1<<20 }, "copying")
	if res, _ := s.unload("n1", s.topic, "--to", "n3"); res.Exit != 3 || !strings.Contains(res.Stderr, m.ID) {
		t.Errorf("to another one meanwhile: exit code %d: %s", res.Exit, res.Stderr)
	}
	if res, err := s.side("n3").Verb(s.ctx, "moves", "cancel", m.ID); err != nil || res.Exit != 0 {
		t.Fatalf("cancel: %+v, %v", res, err)
	}
	for range 2 {
		if e := <-ends; e.Exit != 1 || !strings.Contains(e.Stderr, m.ID) || !strings.Contains(e.Stderr, "called off") {
			t.Errorf("exit code %d: %s", e.Exit, e.Stderr)
		}
	}
	if got := s.moves("n2"); len(got) != 1 || got[0].Phase != moves.Cancelled || got[0].ID != m.ID {
		t.Errorf("n2 lists %+v", got)
	}
	p.awaitMore(10, "n1")
	p.stop()
	s.servedBy("n1")
	if left := s.streams("n2"); len(left) != 0 {
		t.Errorf("n2 has the streams %v, want none", left)
	}
	r.finish("n1")
	p.allAt("n1")
	for _, c := range p.acks() {
		if c.by != "n1" {
			t.Errorf("%+v", c)
		}
	}
	for id, want := range map[string]string{m.ID: "is over", "m0": "unknown"} {
		if res, err := s.side("n1").Verb(s.ctx, "moves", "cancel", id); err != nil || res.Exit != 3 || !strings.Contains(res.Stderr, want) {
			t.Errorf("cancel %s: %+v, %v", id, res, err)
		}
	}
}

// Whoever publishes and reads while a topic goes from one server to the next sees one log: what was
// acknowledged is there at once, once, and in its place.
func TestATopicIsOneLogAcrossMoves(t *testing.T) {
	t.Parallel()
	s := newTrio(t)
	var log linear.History
	stream, err := s.js["n1"].Stream(s.ctx, s.stream)
	s.ok(err)
	before := stream.CachedInfo().State.LastSeq // of who looked whether it is served
	for seq := uint64(1); seq <= before; seq++ {
		log.Append("x")(seq)
	}
	var producers []*producer
	for i := range 3 {
		producers = append(producers, s.produceInto(&log, fmt.Sprintf("p%d-", i), 100))
	}
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	var readers sync.WaitGroup
	for i := range 2 {
		readers.Go(func() { s.follow(ctx, &log, i, before+1) })
	}
	producers[0].awaitMore(50, "n1")
	for i, to := range []string{"n2", "n3"} {
		if res, m := s.unload(s.brokers[i].id, s.topic, "--to", to); res.Exit != 0 || m.Phase != moves.Done {
			t.Fatalf("exit code %d, %s: %s", res.Exit, m.Phase, s.journal())
		}
		producers[i+1].awaitMore(50, to)
	}
	for _, p := range producers {
		p.stop()
	}
	stop()
	readers.Wait()
	heard := log.Len()
	stream, err = s.js["n3"].Stream(s.ctx, s.stream)
	s.ok(err)
	last := stream.CachedInfo().State.LastSeq
	heard(last)
	for seq := before + 1; seq <= last; seq++ {
		s.readOne(s.ctx, &log, "n3", seq)
	}
	if err := log.Judge(bound); err != nil {
		t.Errorf(harness.Violation+"%v", err)
	}
	t.Logf("%d messages are one log", last)
}

// follow reads one message after the other until ctx ends, wherever it is to be had.
func (s *trio) follow(ctx context.Context, log *linear.History, at int, seq uint64) {
	for ctx.Err() == nil {
		if s.readOne(ctx, log, s.brokers[at].id, seq) {
			seq++
			continue
		}
		at = (at + 1) % len(s.brokers)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// readOne reads the message at a sequence from a server, and reports whether it has one.
func (s *trio) readOne(ctx context.Context, log *linear.History, at string, seq uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := s.js[at].Stream(ctx, s.stream)
	if err != nil {
		return false
	}
	heard := log.Read(seq)
	m, err := stream.GetMsg(ctx, seq)
	if err != nil {
		return false
	}
	heard(m.Header.Get(nats.MsgIdHdr))
	return true
}
