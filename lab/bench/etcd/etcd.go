// Package etcd measures what a sidecar's two requests to etcd cost when many others
// are registered: the look on which a registration is decided (cluster.Snapshot), and the
// transaction that writes it (cluster.Register), which every member of etcd applies one by
// one. The baseline is the same request on the same etcd below a prefix with few
// registrations. The two take turns, and a figure is the median of all of them.
//
// It also shows, without a limit, what is not meant to be that cheap: the first look of a
// process, which knows no peer yet and has etcd count all registrations, and the look that
// asks for the oldest peer, of a broker that registers itself, which has etcd sort them.
package etcd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

// me is the broker that looks and registers; it stands in the middle of the others.
const me = "broker-05000-me"

type plan struct {
	few, many, turns int
	limit            float64
}

// Bench declares its flags.
func Bench(flags *flag.FlagSet) kit.Bench {
	p := plan{}
	flags.IntVar(&p.few, "few", 10, "registrations of the baseline, at least 2")
	flags.IntVar(&p.many, "many", 10_000, "registrations of what is measured")
	flags.IntVar(&p.turns, "turns", 300, "times that each request is made")
	flags.Float64Var(&p.limit, "limit", 1.5, "largest accepted ratio")
	return func(ctx context.Context, out io.Writer) ([]kit.Limit, error) {
		return kit.InLab(func(lab *harness.Lab) ([]kit.Limit, error) { return p.run(ctx, out, lab) })
	}
}

// requests are timed; those that are judged have a limit.
var requests = []struct {
	name   string
	judged bool
	once   func(*fleet, context.Context) (time.Duration, error)
}{
	{"register", true, (*fleet).register},
	{"look again", true, func(f *fleet, ctx context.Context) (time.Duration, error) { return look(ctx, f.client, false, nil) }},
	{"first look", false, (*fleet).firstLook},
	{"look, with the oldest peer", false, func(f *fleet, ctx context.Context) (time.Duration, error) { return look(ctx, f.client, true, nil) }},
}

func (p plan) run(ctx context.Context, out io.Writer, lab *harness.Lab) (limits []kit.Limit, err error) {
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{Heartbeat: 100 * time.Millisecond, Election: time.Second})
	if err != nil {
		return nil, err
	}
	var fleets [2]*fleet
	for n, size := range []int{p.few, p.many} {
		if fleets[n], err = newFleet(ctx, etcd, size); err != nil {
			return nil, err
		}
		defer fleets[n].client.Close()
	}
	took := make([][2][]time.Duration, len(requests))
	for range p.turns {
		for i, request := range requests {
			for n, f := range fleets {
				t, err := request.once(f, ctx)
				if err != nil {
					return nil, fmt.Errorf("%s among %d registrations: %w", request.name, f.size, err)
				}
				took[i][n] = append(took[i][n], t)
			}
		}
	}
	fmt.Fprintf(out, "Median of %d requests to one etcd; the baseline is the one among %d registrations.\n", p.turns, p.few)
	fmt.Fprintf(out, "%-28s %12s %12s %8s\n", "", fmt.Sprintf("AMONG %d", p.few), fmt.Sprintf("AMONG %d", p.many), "RATIO")
	for i, request := range requests {
		few, many := kit.Median(took[i][0]), kit.Median(took[i][1])
		ratio := float64(many) / float64(few)
		fmt.Fprintf(out, "%-28s %12v %12v %8.2f\n", request.name, few.Round(time.Microsecond), many.Round(time.Microsecond), ratio)
		if request.judged {
			limits = append(limits, kit.AtMost(request.name+", ratio", ratio, p.limit))
		}
	}
	return limits, nil
}

// fleet is a number of registrations below a prefix of their own.
type fleet struct {
	size   int
	cfg    cluster.Config
	client *cluster.Client
}

func newFleet(ctx context.Context, etcd *harness.Etcd, size int) (*fleet, error) {
	f := &fleet{size: size, cfg: cluster.Config{Endpoints: []string{etcd.Endpoint()}, Prefix: fmt.Sprintf("/of-%d", size)}}
	keys := f.cfg.Keys()
	const atOnce = 100
	for from := 0; from < size; from += atOnce {
		var puts []clientv3.Op
		for i := from; i < min(from+atOnce, size); i++ {
			puts = append(puts, clientv3.OpPut(keys.Registration(fmt.Sprintf("broker-%05d", i)), kit.Registration))
		}
		if _, err := etcd.Client().Txn(ctx).Then(puts...).Commit(); err != nil {
			return nil, fmt.Errorf("write registrations: %w", err)
		}
	}
	var err error
	f.client, err = cluster.Open(f.cfg, nil)
	return f, err
}

// timed is how long do took.
func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// look reads what a registration is decided on, and refuses an answer that leaves a peer out.
func look(ctx context.Context, c *cluster.Client, oldest bool, into *cluster.Snapshot) (time.Duration, error) {
	var seen cluster.Snapshot
	t, err := timed(func() (err error) {
		seen, err = c.SnapshotOf(ctx, cluster.Who{Name: me, Registered: me, Oldest: oldest})
		return err
	})
	if err == nil && (seen.Peer.CreateRevision == 0 || oldest != (seen.OldestPeerRevision != 0)) {
		err = errors.New("no peer was seen")
	}
	if into != nil {
		*into = seen
	}
	return t, err
}

// firstLook is that of a client which is connected and has not looked yet.
func (f *fleet) firstLook(ctx context.Context) (time.Duration, error) {
	c, err := cluster.Open(f.cfg, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.Reach(ctx); err != nil {
		return 0, err
	}
	return look(ctx, c, false, nil)
}

// register times the transaction alone. The registration goes again with its lease.
func (f *fleet) register(ctx context.Context) (time.Duration, error) {
	var seen cluster.Snapshot
	if _, err := look(ctx, f.client, false, &seen); err != nil {
		return 0, err
	}
	lease, _, err := f.client.Grant(ctx, time.Minute)
	if err != nil {
		return 0, err
	}
	t, err := timed(func() error {
		_, err := f.client.Register(ctx, cluster.RegisterRequest{LeaseID: lease, Value: []byte(kit.Registration), Seen: seen, Member: cluster.Member{Incarnation: "i", At: time.Now()}})
		return err
	})
	return t, errors.Join(err, f.client.Revoke(ctx, lease))
}
