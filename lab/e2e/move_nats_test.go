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
