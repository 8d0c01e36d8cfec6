package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/agent/moving"
	"holdfast/lab/harness"
	"holdfast/recovery/moves"
)

// A topic of an HTTP broker goes to another under load, without a message lost, twice or astray.
func TestATopicMovesBetweenHTTPBrokersUnderLoad(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newSharedStand(t)
	const topic, subscription = "/default/orders", "work"
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topic))
	var all []*httpCouple
	for _, name := range []string{"n1", "n2", "n3"} {
		all = append(all, s.nextTo(s.reference(name), s.etcd.Endpoint(), s.flags...).start())
	}
	from, to := all[0], all[1]
	from.await("its topic", func(st harness.Status) bool { return st.Topics.Served == 1 })

	// A producer publishes each message until it is stored, at one broker after the other.
	ctx, end := context.WithCancel(s.ctx)
	var mu sync.Mutex
	var acked []string
	var at int // who took the last one
	var done sync.WaitGroup
	done.Go(func() {
		pace := time.NewTicker(3 * time.Millisecond)
		defer pace.Stop()
		for n, i := 0, 0; ctx.Err() == nil; {
			text := fmt.Sprintf("p%06d", n)
			switch err := all[i].broker.Publish(ctx, topic, text); {
			case err == nil:
				mu.Lock()
				acked, at = append(acked, text), i
				mu.Unlock()
				n++
			case errors.Is(err, harness.ErrNotServed):
				i = (i + 1) % len(all)
			case ctx.Err() == nil:
				t.Errorf("publish at %s: %v", all[i].broker.Name, err)
				return
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { end(); done.Wait() })
	more := func(n int, by int) {
		t.Helper()
		mu.Lock()
		before := len(acked)
		mu.Unlock()
		s.awaitThat(fmt.Sprintf("%d more at n%d", n, by+1), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return at == by && len(acked) >= before+n
		})
	}
	more(50, 0)
	read, err := from.broker.Consume(s.ctx, topic, subscription, 20)
	s.ok(err)
	if len(read) != 20 {
		t.Fatalf("%d messages, want 20", len(read))
	}

	res, err := from.Verb(s.ctx, "unload", topic, "--to", "n2", "--output", "json")
	s.ok(err)
	var m moving.Shown
	if res.Exit != 0 {
		t.Fatalf("exit code %d: %s", res.Exit, res.Stderr)
	}
	s.ok(json.Unmarshal([]byte(res.Stdout), &m))
	more(50, 1)
	end()
	done.Wait()

	if m.Phase != moves.Done || m.Sealed.Floors[subscription] != 20 || m.Copied.Floors[subscription] != 20 ||
		m.Copied.Count != m.Sealed.Count || m.Same.Compared != m.Sealed.Count {
		t.Errorf("%s", res.Stdout)
	}
	rest, err := to.broker.Consume(s.ctx, topic, subscription, 1<<20)
	s.ok(err)
	read = append(read, rest...)
	if len(read) > len(acked) && len(read) <= len(acked)+1 { // the last one was stored, and nobody waited for the answer
		read = read[:len(acked)]
	}
	if !slices.Equal(read, acked) {
		t.Errorf(harness.Violation+"%d messages acknowledged, %d read: %v", len(acked), len(read), read)
	}
	if _, err := from.broker.Count(s.ctx, topic); err == nil {
		t.Error("the source still has it")
	}
	for _, c := range all {
		if err := c.broker.Publish(s.ctx, topic, "x"); (err == nil) != (c == to) {
			t.Errorf("publish at %s after the move: %v", c.broker.Name, err)
		}
	}
}
