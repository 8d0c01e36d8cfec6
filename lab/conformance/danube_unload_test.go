package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube"
	"holdfast/lab/harness"
)

// besideALeader is a broker whose topics the leader, another one, assigns 200 ms after
// they were released: whatever the marker it then takes away has not been read.
func besideALeader(t *testing.T) (s *danubeEtcd, leader *harness.Danube) {
	t.Helper()
	s = launchDanubeEtcd(t)
	leader, err := s.lab.StartDanube(t.Context(), harness.DanubeOptions{Name: "leader", Etcd: s.etcd.Endpoint(), TTL: 3 * time.Second})
	do(t, err)
	t.Cleanup(func() { noDisaster(t, leader) })
	s.Kill(t) // so that the other leads, at once
	_, err = s.etcd.Client().Delete(bound(t), "/cluster/leader")
	do(t, err)
	do(t, harness.Await(t.Context(), harness.Patience, "the other to lead", func(ctx context.Context) (bool, string) {
		st, err := leader.Status(ctx)
		return err == nil && st.Leads, fmt.Sprintf("%+v, %v", st, err)
	}))
	s.Danube, err = s.lab.StartDanube(t.Context(), harness.DanubeOptions{Name: "d2", Etcd: s.etcd.Endpoint(), TTL: 3 * time.Second})
	do(t, err)
	broker := s.Danube
	t.Cleanup(func() { noDisaster(t, broker) })
	return s, leader
}

func awaitLoaded(t *testing.T, d *harness.Danube, topics ...string) {
	t.Helper()
	do(t, harness.Await(t.Context(), harness.Patience, d.Name+" to serve", func(ctx context.Context) (bool, string) {
		st, err := d.Status(ctx)
		for _, topic := range topics {
			if !slices.Contains(st.Loaded, topic) {
				return false, fmt.Sprintf("%+v, %v", st, err)
			}
		}
		return err == nil, ""
	}))
}

func TestAnUnloadAtABrokerThatHangsLeavesTheTopicAlone(t *testing.T) {
	s, leader := besideALeader(t)
	b := s.Open(t)
	t.Cleanup(func() { b.Close() })
	s.Assign(t, "/default/orders")
	do(t, b.Load(bound(t), "/default/orders", nil))
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.(brokerapi.Unloader).Unload(ctx, "/default/orders"); err == nil {
		t.Error("unloaded at a broker that hangs")
	}
	time.Sleep(600 * time.Millisecond) // the leader would have assigned it
	s.Thaw(t)
	do(t, b.(brokerapi.Unloader).Unload(bound(t), "/default/orders"))
	awaitLoaded(t, leader, "/default/orders")
}

func TestALookupPortOfAnotherBrokerIsToldAndLoadsNothingTwice(t *testing.T) {
	s, leader := besideALeader(t)
	s.Assign(t, "/default/orders")
	awaitLoaded(t, s.Danube, "/default/orders")
	cfg := danubeConfig(s.Danube)
	cfg.LookupURL, cfg.Store = "http://"+leader.ClientAddr(), danubeStore{s.store}
	b, err := danube.New(cfg)
	do(t, err)
	t.Cleanup(func() { b.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if err := b.Load(ctx, "/default/orders", nil); err == nil {
		t.Error("loaded by what another broker says")
	}
	if err := b.Health(bound(t)); !errors.Is(err, brokerapi.ErrIdentity) || !strings.Contains(err.Error(), "set --danube-lookup to") {
		t.Error(err)
	}
}
