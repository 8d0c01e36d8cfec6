package topics

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/recovery"
)

func benchFacts(n int) map[string]recovery.PlanFacts {
	facts := make(map[string]recovery.PlanFacts, n)
	for i := range n {
		facts[fmt.Sprintf("/default/topic-%05d", i)] = recovery.PlanFacts{Assigned: true, Serving: i%2 == 0}
	}
	return facts
}

// BenchmarkPlan10000 plans 10,000 topics of which half are missing. The limit of the
// issue is 50 ms.
func BenchmarkPlan10000(b *testing.B) {
	in := recovery.PlanInput{
		Now: time.Now(), Orders: recovery.Orders{Mode: recovery.Active, Attached: true}, AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(benchFacts(10_000)), Window: 30 * time.Second, Share: 0.5,
	}
	b.ReportAllocs()
	for b.Loop() {
		if w := recovery.Plan(in); len(w.Load) != 5_000 {
			b.Fatalf("load %d topics, want 5000", len(w.Load))
		}
	}
}

// BenchmarkReconcile10000 is the reconciler's own cost: 10,000 topics on a broker
// that loads in no time. ns/op ÷ 10,000 is what one load costs over calling Load.
func BenchmarkReconcile10000(b *testing.B) {
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprintf("/default/topic-%05d", i)
	}
	b.ReportAllocs()
	for b.Loop() {
		broker := &instantBroker{want: int64(len(names)), all: make(chan struct{})}
		r := NewReconciler(ReconcilerSettings{Concurrency: 16, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second}, broker, broker, slog.New(slog.DiscardHandler), nil)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		r.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "a"})
		r.SetAssigned(true, names, nil)
		<-broker.all
		cancel()
		<-done
	}
}

// instantBroker holds nothing and does everything at once.
type instantBroker struct {
	loaded atomic.Int64
	want   int64
	all    chan struct{}
}

func (*instantBroker) Topics(context.Context) (Held, error) {
	return Held{}, nil
}

func (b *instantBroker) Serve(context.Context, string, []byte) error {
	if b.loaded.Add(1) == b.want {
		close(b.all)
	}
	return nil
}

func (*instantBroker) Withdraw(context.Context, string) error { return nil }

func (*instantBroker) Records(context.Context, []string) (map[string][]byte, error) {
	return nil, nil
}
