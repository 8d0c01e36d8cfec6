package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// hungTTL leaves room for a new leader within what a renewal may take.
const hungTTL = 8 * time.Second

// hanging is three members of which the leader can be made to hang in its disk, and to go on
// confirming renewals while it does.
func hanging(t *testing.T) (*harness.Lab, *harness.EtcdCluster) {
	t.Helper()
	if err := harness.CanHang(); err != nil {
		t.Skip(err)
	}
	binary, err := harness.LyingEtcd()
	if err != nil {
		t.Fatal(err)
	}
	l := harness.ForTest(t)
	c, err := l.StartEtcdCluster(t.Context(), 3, harness.EtcdOptions{Binary: binary, Fsync: true})
	if err != nil {
		t.Fatal(err)
	}
	return l, c
}

func TestALeaderThatHangsInItsDiskConfirmsNothing(t *testing.T) {
	takesLong(t)
	t.Parallel()
	t.Run("that endpoint alone", func(t *testing.T) {
		t.Parallel()
		l, etcd := hanging(t)
		leader, err := etcd.Leader(t.Context())
		must(t, err)
		broker, err := l.StartNATS(t.Context(), harness.NATSOptions{Name: "n1"})
		must(t, err)
		sidecar, err := l.StartSidecar(harness.SidecarOptions{Broker: broker, Endpoints: []string{leader.Endpoint()}, Flags: []string{
			"--lease-ttl", hungTTL.String(), "--health-interval", "200ms"}})
		must(t, err)
		probes := l.Record(sidecar)
		must(t, sidecar.AwaitReady(t.Context(), 2*bound))
		began := time.Now()
		must(t, etcd.HangLeader(t.Context(), leader))
		history, err := l.Watch(t.Context(), etcd.Other(leader), "/")
		must(t, err)

		// The new leader gave it a whole TTL more.
		gone, err := history.Await(t.Context(), 2*hungTTL, "the end of the key", history.From, harness.DeletedKey((harness.Keys{}).Registration("n1")))
		must(t, err)
		events, err := sidecar.Events(t.Context())
		must(t, err)
		unready, ok := probes.FirstNotReady(began)
		if !ok {
			t.Fatalf(harness.Violation+"ready all the time, and the key is gone:\n%s", probes)
		}
		inOrder(t, "seen not to be ready", unready, "its key was gone", gone.At)
		fenced := false
		for _, e := range events {
			if e.At.After(began) && e.Kind == "fence" && e.To == "quiesced" {
				fenced = true
				inOrder(t, "quiesced", e.At, "its key was gone", gone.At)
			}
		}
		if !fenced {
			t.Errorf(harness.Violation+"not fenced, and the key is gone: %+v", events)
		}
		// It goes on confirming: nothing of that may bring the broker back.
		waitOut(t, etcd.Other(leader), hungTTL)
		must(t, probes.NeverReady(gone.At, time.Now()))
	})
}

// It keeps the watches too, and has nothing to tell. A service stands before all members, as
// in a cluster of pods: what is connected stays where it is.
func TestADrainIsSeenThoughTheMemberThatIsWatchedHangs(t *testing.T) {
	takesLong(t)
	t.Parallel()
	l, etcd := hanging(t)
	leader, err := etcd.Leader(t.Context())
	must(t, err)
	service, err := harness.NewFront(l, address(leader.Port))
	must(t, err)
	broker, err := l.StartNATS(t.Context(), harness.NATSOptions{Name: "n1"})
	must(t, err)
	sidecar, err := l.StartSidecar(harness.SidecarOptions{Broker: broker, Endpoints: []string{"http://" + service.Addr()}, Flags: []string{
		"--lease-ttl", hungTTL.String(), "--health-interval", "200ms"}})
	must(t, err)
	must(t, sidecar.AwaitReady(t.Context(), 2*bound))
	must(t, etcd.HangLeader(t.Context(), leader))
	service.LeadNew(address(etcd.Other(leader).Port))
	began := time.Now()
	must(t, harness.Await(t.Context(), bound, "the drain to be written", func(ctx context.Context) (bool, string) {
		_, err := etcd.Other(leader).Client().Put(ctx, (harness.Keys{}).State("n1"), `{"mode":"drained","reason":"disk swap","by":"operator"}`)
		return err == nil, fmt.Sprint(err) // the new leader may have to be found yet
	}))
	_, err = sidecar.Await(t.Context(), 35*time.Second+bound, "the drain to be seen", func(st harness.Status) bool {
		return st.Mode == "drained" && st.Reason == "disk swap"
	})
	must(t, err)
	t.Logf("seen after %.1f s", time.Since(began).Seconds())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitOut lets a lease of the lab's own run out.
func waitOut(t *testing.T, e *harness.Etcd, ttl time.Duration) {
	t.Helper()
	lease, err := e.Client().Grant(t.Context(), int64(ttl.Seconds()))
	must(t, err)
	must(t, harness.Await(t.Context(), ttl+bound, "a TTL to pass", func(ctx context.Context) (bool, string) {
		res, err := e.Client().TimeToLive(ctx, lease.ID)
		return err == nil && res.TTL <= 0, "not yet"
	}))
}
