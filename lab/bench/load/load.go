// Package load measures how fast topics are loaded, beside the fastest that
// the broker's own client does it: a bare loop of jetstream.CreateStream with the
// same concurrency. Measured are the driver alone, and the reconciler of the
// sidecar on top of it, as it loads what etcd has assigned; that one decides.
//
// Each round starts one fresh nats-server with an empty data directory for each
// of the three. They load in turns, a slice of the topics at a time, and who is
// first changes from slice to slice: what else the machine does hits all alike. A
// ratio is the median over all turns, the rates are medians too. Figures of two machines do not compare.
package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"holdfast/brokerapi/nats"
	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

type plan struct {
	rounds, topics, slice, concurrency int
	floor                              float64
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.rounds, "rounds", 2, "rounds, each with fresh servers")
	flags.IntVar(&p.topics, "topics", 5000, "topics of each loader in a round")
	flags.IntVar(&p.slice, "slice", 250, "topics a turn")
	flags.IntVar(&p.concurrency, "concurrency", 16, "loads under way at once")
	flags.Float64Var(&p.floor, "floor", 0.80, "smallest accepted ratio of the reconciler's rate to the bare loop's")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

// loader loads topics that the broker does not have yet and returns when all are
// served. What has to be set up before the clock starts is done by its maker.
type loader func(ctx context.Context, topics []string) error

// contestants are compared: the first is the measure, the last decides.
var contestants = [...]struct {
	name string
	open func(ctx context.Context, p plan, s *harness.NATS, js jetstream.JetStream) (load loader, done func(), err error)
}{
	{"bare loop of jetstream.CreateStream", openBare},
	{"holdfast's driver", openDriver},
	{"holdfast's reconciler", openReconciler},
}

const namespace = "/default/"

func openBare(_ context.Context, p plan, _ *harness.NATS, js jetstream.JetStream) (loader, func(), error) {
	return func(ctx context.Context, topics []string) error {
		return p.each(topics, func(topic string) error {
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{
				Name:     "bare-default-" + topic[len(namespace):], // as long as Holdfast's own
				Subjects: []string{"default." + topic[len(namespace):]},
			})
			return err
		})
	}, func() {}, nil
}

// healthyBroker is a driver that has found its server.
func healthyBroker(ctx context.Context, s *harness.NATS) (*nats.Broker, error) {
	b, err := nats.New(nats.Config{AdminURL: s.URL(), MonitorURL: s.MonitorURL()})
	if err != nil {
		return nil, err
	}
	if _, err := b.Probe(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func openDriver(ctx context.Context, p plan, s *harness.NATS, _ jetstream.JetStream) (loader, func(), error) {
	b, err := healthyBroker(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, topics []string) error {
		return p.each(topics, func(topic string) error { return b.Serve(ctx, topic, nil) })
	}, func() { b.Close() }, nil
}

// each calls do for every topic, with so many calls under way at once.
func (p plan) each(topics []string, do func(string) error) error {
	var group errgroup.Group
	group.SetLimit(p.concurrency)
	for _, topic := range topics {
		group.Go(func() error { return do(topic) })
	}
	return group.Wait()
}

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) ([]kit.Limit, error) {
	var topics []string
	for i := range p.topics {
		topics = append(topics, fmt.Sprintf("%stopic-%06d", namespace, i))
	}
	var rates, ratios [len(contestants)][]float64
	for n := range p.rounds {
		if err := p.round(ctx, lab, n, topics, func(turn [len(contestants)]float64) {
			for i, rate := range turn {
				rates[i] = append(rates[i], rate)
				ratios[i] = append(ratios[i], rate/turn[0])
			}
		}); err != nil {
			return nil, err
		}
	}
	ratio := 0.0
	for i, c := range contestants {
		ratio = kit.Median(ratios[i])
		fmt.Fprintf(out, "median   %-36s %8.0f topics/s, ratio %.2f\n", c.name, kit.Median(rates[i]), ratio)
	}
	fmt.Fprintf(out, "medians of %d turns (%d rounds of %d topics, %d a turn, concurrency %d)\n", len(ratios[0]), p.rounds, p.topics, p.slice, p.concurrency)
	return []kit.Limit{kit.AtLeast("reconciler, ratio to the bare loop", ratio, p.floor)}, nil
}

// round is one fresh server for each contestant. It tells the rates of each turn, in topics per second.
func (p plan) round(ctx context.Context, lab *harness.Lab, n int, topics []string, tell func([len(contestants)]float64)) error {
	var streams [len(contestants)]jetstream.JetStream
	var loads [len(contestants)]loader
	for i, c := range contestants {
		server, err := lab.StartNATS(ctx, harness.NATSOptions{Name: fmt.Sprintf("round%d-%d", n+1, i+1)})
		if err != nil {
			return err
		}
		conn, err := server.Connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		var done func()
		if streams[i], err = jetstream.New(conn); err == nil {
			loads[i], done, err = c.open(ctx, p, server, streams[i])
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", c.name, err)
		}
		defer done()
		defer func() { _ = server.Kill() }() // the next round begins without it
	}
	turns := 0
	for slice := range slices.Chunk(topics, p.slice) {
		var rates [len(contestants)]float64
		for k := range contestants {
			i := (k + turns) % len(contestants)
			start := time.Now()
			if err := loads[i](ctx, slice); err != nil {
				return fmt.Errorf("%s: %w", contestants[i].name, err)
			}
			rates[i] = float64(len(slice)) / time.Since(start).Seconds()
		}
		tell(rates)
		turns++
	}
	for i, js := range streams { // a rate counts only for work that was done
		info, err := js.AccountInfo(ctx)
		if err == nil && info.Streams != len(topics) {
			err = errors.New("the server holds another number of streams")
		}
		if err != nil {
			return fmt.Errorf("%s: %w: want %d", contestants[i].name, err, len(topics))
		}
	}
	return nil
}
