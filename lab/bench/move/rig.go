package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/agent/moving"
	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

const messageSize = 16_000

// rig is two NATS servers with a sidecar each.
type rig struct {
	lab       *harness.Lab
	etcd      *harness.Etcd
	keys      harness.Keys
	sides     []*side
	restoring sync.Mutex // held while a plain stream is restored
}

type side struct {
	*harness.Sidecar
	id   string
	conn *nats.Conn
	js   jetstream.JetStream
	jsm  *jsm.Manager
}

// newRig starts all of it. fail is called when a server has ended: jsm.go would await its answer for an hour.
func newRig(ctx context.Context, fail context.CancelCauseFunc, flags []string) (*rig, error) {
	r := &rig{}
	var err error
	if r.lab, err = harness.New(); err != nil {
		return r, err
	}
	if r.etcd, err = r.lab.StartEtcd(ctx, harness.EtcdOptions{}); err != nil {
		return r, err
	}
	for _, id := range []string{"n1", "n2"} {
		s := &side{id: id}
		r.sides = append(r.sides, s)
		broker, err := r.lab.StartNATS(ctx, harness.NATSOptions{Name: id})
		if err != nil {
			return r, err
		}
		if s.conn, err = broker.Connect(nats.ReconnectBufSize(-1)); err != nil {
			return r, err
		}
		if s.js, err = jetstream.New(s.conn, jetstream.WithPublishAsyncMaxPending(512)); err != nil {
			return r, fmt.Errorf("open JetStream of %s: %w", id, err)
		}
		if s.jsm, err = jsm.New(s.conn, jsm.WithTimeout(kit.StartBound)); err != nil {
			return r, fmt.Errorf("open JetStream of %s: %w", id, err)
		}
		go func() {
			<-broker.Exited()
			fail(fmt.Errorf("nats-server %s has ended", id))
			s.conn.Close()
		}()
		about := harness.SidecarOptions{Broker: broker, Endpoints: []string{r.etcd.Endpoint()}, Flags: flags}
		s.Sidecar, err = r.lab.StartSidecar(about)
		if err != nil {
			return r, err
		}
	}
	for _, s := range r.sides {
		if err := s.AwaitReady(ctx, kit.StartBound); err != nil {
			return r, err
		}
	}
	return r, nil
}

// close ends everything. An error is returned with what the processes have said last.
func (r *rig) close(err error) error {
	for _, s := range r.sides {
		if s.conn != nil {
			s.conn.Close()
		}
	}
	if r.lab == nil {
		return err
	}
	if err != nil {
		err = fmt.Errorf("%w; logs:\n%s", err, r.lab.Logs(20))
	}
	return errors.Join(err, r.lab.Close())
}

// pair is a topic, and a plain stream that is as large.
type pair struct{ topic, stream string }

func newPair(name string) pair { return pair{"/default/" + name, "plain-" + name} }

func (p pair) plainSubject() string { return strings.Replace(p.stream, "-", ".", 1) }

// make makes pairs at n1, each with so many bytes, which no snapshot can make smaller.
func (r *rig) make(ctx context.Context, bytes int, pairs ...pair) error {
	n1 := r.sides[0]
	before, err := n1.Status(ctx)
	if err != nil {
		return err
	}
	var topics []string
	for _, p := range pairs {
		topics = append(topics, p.topic)
		if err := n1.makePlain(ctx, p); err != nil {
			return err
		}
	}
	if err := r.keys.Assign(ctx, r.etcd.Client(), n1.id, topics...); err != nil {
		return err
	}
	want := before.Topics.Served + len(pairs)
	served := func(s harness.Status) bool { return s.Topics.Served == want }
	if _, err := n1.Await(ctx, kit.StartBound, "all topics to be served", served); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{})
	for _, p := range pairs {
		for left := bytes; left > 0; left -= messageSize {
			data := make([]byte, min(left, messageSize))
			_, _ = random.Read(data)
			for _, subject := range []string{harness.Subject(p.topic), p.plainSubject()} {
				if _, err := n1.js.PublishAsync(subject, data); err != nil {
					return fmt.Errorf("publish to %s: %w", subject, err)
				}
			}
		}
	}
	select {
	case <-n1.js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (s *side) makePlain(ctx context.Context, p pair) error {
	_, err := s.js.CreateStream(ctx, jetstream.StreamConfig{Name: p.stream, Subjects: []string{p.plainSubject()}})
	if err != nil {
		return fmt.Errorf("make %s at %s: %w", p.stream, s.id, err)
	}
	return nil
}

// movePlain has a plain stream snapshotted, and restored at the other server; it is left where it was.
func (r *rig) movePlain(ctx context.Context, from, to *side, stream string) error {
	data, meta := filepath.Join(r.lab.Dir, stream+".data"), filepath.Join(r.lab.Dir, stream+".json")
	defer os.Remove(data)
	defer os.Remove(meta)
	out := func(name string) *os.File { // nothing is written to none, which is an error then
		f, _ := os.Create(name)
		return f
	}
	in := func(name string) *os.File {
		f, _ := os.Open(name)
		return f
	}
	s, err := from.jsm.LoadStream(stream)
	if err == nil {
		_, err = s.SnapshotToBuffer(ctx, out(data), out(meta), jsm.SnapshotConsumers())
	}
	if err == nil {
		r.restoring.Lock()
		_, err = to.jsm.RestoreSnapshotFromBuffer(ctx, stream, in(data), in(meta))
		r.restoring.Unlock()
	}
	if err != nil {
		return fmt.Errorf("snapshot and restore %s from %s to %s: %w", stream, from.id, to.id, err)
	}
	return nil
}

// unload moves a topic and returns its journal.
func (r *rig) unload(ctx context.Context, from, to *side, topic string) (m moves.Move, err error) {
	res, err := from.Verb(ctx, "unload", topic, "--to", to.id, "--output", "json")
	if err != nil {
		return m, err
	}
	if res.Exit != 0 {
		return m, fmt.Errorf("unload %s from %s: exit code %d: %s", topic, from.id, res.Exit, res.Stderr)
	}
	var one moving.Shown
	if err := json.Unmarshal([]byte(res.Stdout), &one); err != nil {
		return m, fmt.Errorf("read move %.200q: %w", res.Stdout, err)
	}
	return one.Move, nil
}

// shown are the moves that a verb has printed as JSON.
func shown(text string, want int) (all []moves.Move, err error) {
	var list []moving.Shown
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("read moves %.200q: %w", text, err)
	}
	if len(list) != want {
		return nil, fmt.Errorf("%d moves, want %d: %.200q", len(list), want, text)
	}
	for _, s := range list {
		all = append(all, s.Move)
	}
	return all, nil
}

// took is how long a move needed from one phase to another.
func took(m moves.Move, from, to moves.Phase) time.Duration { return m.Since[to].Sub(m.Since[from]) }

// judgeMemory is the most that each sidecar had.
func (r *rig) judgeMemory(limit float64) (limits []kit.Limit, err error) {
	for _, s := range r.sides {
		u, failed := kit.Look(s.PID())
		limits, err = append(limits, kit.AtMost("memory of "+s.id+"'s sidecar, MB", float64(u.Most)/mega, limit)), errors.Join(err, failed)
	}
	return limits, err
}
