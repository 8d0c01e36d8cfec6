package brokertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// answering is a probe of which nothing but its error is looked at.
func answering(b brokerapi.Broker) func(context.Context) error {
	return func(ctx context.Context) error { _, err := b.Probe(ctx); return err }
}

func healthWhenKilled(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	s.Kill(t)
	wantUnwell(t, b)
	s.Start(t)
	become(t, "healthy after the restart", answering(b))
}

func healthWhenFrozen(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	s.Freeze(t)
	wantUnwell(t, b)
	s.Thaw(t)
	become(t, "healthy after the thaw", answering(b))
}

// short is the context of a call that cannot be answered; late is how much
// longer the call may take, on a busy machine.
const (
	short = 300 * time.Millisecond
	late  = time.Second
)

func wantUnwell(t *testing.T, b brokerapi.Broker) {
	t.Helper()
	bounded(t, "health", answering(b))
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
	load(t, s, b, "/default/orders", nil)
	calls := map[string]func(context.Context) error{
		"probe":  answering(b),
		"topics": func(ctx context.Context) error { _, err := b.Topics(ctx); return err },
	}
	if !placed(s) {
		calls["serve"] = func(ctx context.Context) error { return b.Serve(ctx, "/default/new", nil) }
	}
	if withdraws(t, b) {
		calls["withdraw"] = func(ctx context.Context) error { return b.Withdraw(ctx, unit(s, "/default/orders")) }
	}
	if st, ok := b.(brokerapi.ModeSetter); ok {
		calls["steer"] = func(ctx context.Context) error { return st.SetMode(ctx, brokerapi.Active, "test") }
	}
	assign(t, s, "/default/new")
	s.Freeze(t)
	for name, call := range calls {
		bounded(t, name, call)
	}
	s.Thaw(t)
	become(t, "healthy after the thaw", answering(b))
	for name, call := range calls { // a leader that was frozen knows none until the others have elected one
		become(t, name+" answers after the thaw", call)
	}
	refusedWhenEnded(t, calls)
}

func refusedWhenEnded(t *testing.T, calls map[string]func(context.Context) error) {
	t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, call := range calls {
		if err := call(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: got %v, want %v", name, err, context.Canceled)
		}
	}
}

// heavyBounded is apart: what was asked of a frozen broker it may still do when it thaws.
func heavyBounded(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	calls := map[string]func(context.Context) error{}
	const topic = "/default/orders"
	if st, ok := b.(brokerapi.ModeSetter); ok {
		calls["steer"] = func(ctx context.Context) error { return st.SetMode(ctx, brokerapi.Drained, "test") }
	}
	if len(calls) == 0 {
		t.Skip("no mode of its own")
	}
	load(t, s, b, topic, nil)
	refusedWhenEnded(t, calls)
	s.Freeze(t)
	for name, call := range calls {
		bounded(t, name, call)
	}
	s.Thaw(t)
}

func servesAfterRestart(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	load(t, s, b, "/default/orders", nil)
	load(t, s, b, "/default/parked", nil)
	publish(t, s, "/default/orders")
	if h.Parks {
		if err := b.Withdraw(soon(t), "/default/parked"); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill(t)
	s.Start(t)
	become(t, "healthy after the restart", answering(b))
	if h.Parks && h.Traits.LocalData {
		held, err := b.Topics(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range held.Serving {
			if topic == "/default/parked" {
				t.Error("a restart undid the quiescing")
			}
		}
	}
	load(t, s, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	wantCount(t, s, "/default/orders", 2)
}

func closeEndsCalls(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := s.Open(t)
	become(t, "healthy", answering(b))
	assign(t, s, "/default/orders")
	s.Freeze(t)
	ended := make(chan error, 2)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() {
		if placed(s) {
			_, err := b.Topics(ctx)
			ended <- err
			return
		}
		ended <- b.Serve(ctx, "/default/orders", nil)
	}()
	go func() { ended <- answering(b)(ctx) }()
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
	if err := answering(b)(soon(t)); err == nil {
		t.Error("healthy after Close")
	}
	if err := b.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}
