package brokertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/brokerapi"
)

func healthWhenKilled(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	s.Kill(t)
	wantUnwell(t, b)
	s.Start(t)
	become(t, "healthy after the restart", b.Health)
}

func healthWhenFrozen(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	s.Freeze(t)
	wantUnwell(t, b)
	s.Thaw(t)
	become(t, "healthy after the thaw", b.Health)
}

// short is the context of a call that cannot be answered; late is how much
// longer the call may take, on a busy machine.
const (
	short = 300 * time.Millisecond
	late  = 300 * time.Millisecond
)

func wantUnwell(t *testing.T, b brokerapi.Broker) {
	t.Helper()
	bounded(t, "health", func(ctx context.Context) error { return b.Health(ctx) })
}

// bounded wants an error from call, no later than its context.
func bounded(t *testing.T, name string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), short)
	defer cancel()
	start := time.Now()
	err := call(ctx)
	if took := time.Since(start); took > short+late {
		t.Errorf("%s took %v with %v allowed", name, took, short)
	}
	if err == nil {
		t.Errorf("%s succeeded with a broker that cannot answer", name)
	}
}

func boundedWhenFrozen(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	load(t, b, "/default/orders", nil)
	calls := map[string]func(context.Context) error{
		"identify": func(ctx context.Context) error { _, err := b.Identify(ctx); return err },
		"health":   b.Health,
		"topics":   func(ctx context.Context) error { _, _, err := b.Topics(ctx); return err },
		"load":     func(ctx context.Context) error { return b.Load(ctx, "/default/new", nil) },
	}
	if q, ok := b.(brokerapi.Quiescer); ok {
		calls["quiesce"] = func(ctx context.Context) error { return q.Quiesce(ctx, "/default/orders") }
	}
	if u, ok := b.(brokerapi.Unloader); ok {
		calls["unload"] = func(ctx context.Context) error { return u.Unload(ctx, "/default/orders") }
	}
	s.Freeze(t)
	for name, call := range calls {
		bounded(t, name, call)
	}
	s.Thaw(t)
	become(t, "healthy after the thaw", b.Health)
	for name, call := range calls {
		if err := call(soon(t)); err != nil {
			t.Errorf("%s after the thaw: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range calls {
		if err := call(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: got %v, want %v", name, err, context.Canceled)
		}
	}
}

func servesAfterRestart(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	load(t, b, "/default/orders", nil)
	load(t, b, "/default/parked", nil)
	publish(t, s, "/default/orders")
	q, canQuiesce := b.(brokerapi.Quiescer)
	if canQuiesce {
		if err := q.Quiesce(soon(t), "/default/parked"); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill(t)
	s.Start(t)
	become(t, "healthy after the restart", b.Health)
	if canQuiesce && b.Capabilities().LocalData {
		serving, _, err := b.Topics(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range serving {
			if topic == "/default/parked" {
				t.Error("a restart undid the quiescing")
			}
		}
	}
	load(t, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	wantCount(t, s, "/default/orders", 2)
}

func lossAfterKill(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	w, ok := b.(brokerapi.LossWatcher)
	if !ok || !b.Capabilities().HeldWatch {
		t.Skip("this broker has no held watch")
	}
	for round := range 2 { // the watch comes back with the broker
		select {
		case <-w.Lost():
			t.Fatal("lost before the kill")
		default:
		}
		start := time.Now()
		s.Kill(t)
		select {
		case <-w.Lost():
		case <-time.After(usual):
			t.Fatalf("round %d: no loss within %v", round, usual)
		}
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("round %d: loss known after %v", round, took)
		}
		s.Start(t)
		become(t, "healthy after the restart", b.Health)
	}
}

func closeEndsCalls(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := s.Open(t)
	become(t, "healthy", b.Health)
	s.Freeze(t)
	ended := make(chan error, 2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { ended <- b.Load(ctx, "/default/orders", nil) }()
	go func() { ended <- b.Health(ctx) }()
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	for range 2 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a call succeeded with a broker that cannot answer")
			}
		case <-time.After(2 * time.Second): // far below any time for one answer
			t.Fatal("a call outlived the driver")
		}
	}
	if err := b.Health(soon(t)); err == nil {
		t.Error("healthy after Close")
	}
	if err := b.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
