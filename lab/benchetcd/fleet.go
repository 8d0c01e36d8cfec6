package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
	"holdfast/lab/harness"
	"holdfast/standstill"
)

// me is the broker that looks and registers; it stands in the middle of the others.
const me = "broker-05000-me"

// value is as long as a sidecar's own.
const value = `{"broker_url":"nats://10.0.0.1:4222","connect_url":"nats://10.0.0.1:4222","admin_addr":"10.0.0.1:8222",` +
	`"prom_exporter":"10.0.0.1:7777","incarnation":"0123456789abcdef0123456789abcdef","run":"0123456789abcdef"}`

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
			puts = append(puts, clientv3.OpPut(keys.Registration(fmt.Sprintf("broker-%05d", i)), value))
		}
		if _, err := etcd.Client().Txn(ctx).Then(puts...).Commit(); err != nil {
			return nil, fmt.Errorf("write registrations: %w", err)
		}
	}
	var err error
	f.client, err = cluster.Open(f.cfg, nil)
	return f, err
}

func (f *fleet) close() { f.client.Close() }

// timed is how long do took.
func timed(do func() error) (took, error) {
	began := time.Now()
	err := do()
	t := took{whole: time.Since(began)}
	t.still = standstill.For(began, began.Add(t.whole))
	return t, err
}

// look reads what a registration is decided on, and refuses an answer that leaves a peer out.
func look(ctx context.Context, c *cluster.Client, oldest bool) (seen cluster.Snapshot, t took, err error) {
	t, err = timed(func() (err error) {
		seen, err = c.SnapshotOf(ctx, cluster.Who{Name: me, Registered: me, Oldest: oldest})
		return err
	})
	if err == nil && (seen.Peer.CreateRevision == 0 || oldest != (seen.OldestPeerRevision != 0)) {
		err = errors.New("no peer was seen")
	}
	return seen, t, err
}

func (f *fleet) lookAgain(ctx context.Context) (took, error) {
	_, t, err := look(ctx, f.client, false)
	return t, err
}

func (f *fleet) lookForOldest(ctx context.Context) (took, error) {
	_, t, err := look(ctx, f.client, true)
	return t, err
}

// firstLook is that of a client which is connected and has not looked yet.
func (f *fleet) firstLook(ctx context.Context) (took, error) {
	c, err := cluster.Open(f.cfg, nil)
	if err != nil {
		return took{}, err
	}
	defer c.Close()
	if err := c.Reach(ctx); err != nil {
		return took{}, err
	}
	_, t, err := look(ctx, c, false)
	return t, err
}

// register times the transaction alone. The registration goes again with its lease.
func (f *fleet) register(ctx context.Context) (took, error) {
	seen, _, err := look(ctx, f.client, false)
	if err != nil {
		return took{}, err
	}
	lease, _, err := f.client.Grant(ctx, time.Minute)
	if err != nil {
		return took{}, err
	}
	t, err := timed(func() error {
		_, err := f.client.Register(ctx, cluster.RegisterRequest{LeaseID: lease, Value: []byte(value), Seen: seen, Member: cluster.Member{Incarnation: "i", At: time.Now()}})
		return err
	})
	return t, errors.Join(err, f.client.Revoke(ctx, lease))
}
