package load

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// noRecords stands for etcd: no topic has a record of its own.
type noRecords struct{}

func (noRecords) Records(context.Context, []string) (map[string][]byte, error) { return nil, nil }

// listed gives the broker's list the reconciler's form, as the sidecar does.
type listed struct{ *nats.Broker }

func (l listed) Topics(ctx context.Context) (topics.Held, error) {
	held, err := l.Broker.Topics(ctx)
	return topics.Held{Serving: held.Serving, Withdrawn: held.Withdrawn, Unreadable: held.Unreadable}, err
}

// openReconciler runs the sidecar's reconciler, with the settings of a sidecar by default but the
// concurrency. Topics are loaded by assigning them.
func openReconciler(ctx context.Context, p plan, s *harness.NATS, _ jetstream.JetStream) (loader, func(), error) {
	b, err := healthyBroker(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	r := topics.NewReconciler(topics.ReconcilerSettings{Concurrency: p.concurrency, LoadTimeout: 30 * time.Second, AuditInterval: 30 * time.Second, MassChangeShare: 0.5},
		listed{b}, noRecords{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.SetAssigned(1, true, nil, nil)
	r.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "bench"})
	run, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(run) // nil at its end
	}()
	load := func(ctx context.Context, topics []string) error {
		want := r.Snapshot().Served + len(topics)
		r.SetAssigned(1, false, topics, nil)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			p := r.Snapshot()
			switch {
			case p.Served >= want:
				return nil
			case p.Failed > 0:
				return errors.New(p.LastError)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return load, func() {
		stop()
		<-ended
		b.Close()
	}, nil
}
