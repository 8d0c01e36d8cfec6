package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"holdfast/agent/lease"
	"holdfast/cluster"
	"holdfast/recovery"
)

// leaseAsks sees, and may change, what etcd answers about leases.
type leaseAsks struct {
	grpc.ClientConnInterface
	mu     sync.Mutex
	times  []time.Time
	answer func(*pb.LeaseTimeToLiveResponse) error
}

func (c *leaseAsks) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if answer, ok := reply.(*pb.LeaseTimeToLiveResponse); ok && err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.times = append(c.times, time.Now())
		if c.answer != nil {
			err = c.answer(answer)
		}
	}
	return err
}

// newDead is a broker that was registered beside the peer n2, and is started again after
// its lease ran out. Its sidecar asks over the way that is returned.
func newDead(t *testing.T) (*outage, *leaseAsks) {
	o := newOutage(t, "drain")
	way := &leaseAsks{ClientConnInterface: o.store.Conn(nil)}
	o.line = directLine{cluster.Over(cluster.Config{}, way, nil)}
	o.past.instance, o.past.boot = "process-2", recovery.BootFacts{StateFile: true}
	o.past.memory.Deadline = time.Now().Add(32 * time.Second)
	o.lose()
	return o, way
}

// wait asks for so long, as the Keeper does, and says what became of it.
func (o *outage) wait(atMost time.Duration, meanwhile func(elapsed time.Duration)) (d recovery.Decision, err error) {
	o.t.Helper()
	for began := time.Now(); time.Since(began) < atMost; time.Sleep(500 * time.Millisecond) {
		if meanwhile != nil {
			meanwhile(time.Since(began))
		}
		before := o.snapshot()
		if _, err = o.Establish(o.t.Context(), 0, false); err == nil {
			return o.outcomes[len(o.outcomes)-1].decision, nil
		}
		if !errors.Is(err, lease.ErrDeferred) || o.snapshot().Revision != before.Revision {
			o.t.Fatalf("%v; revision %d, before %d", err, o.snapshot().Revision, before.Revision)
		}
	}
	return d, err
}

func (o *outage) is(d recovery.Decision, mode recovery.Mode, reason recovery.Reason) {
	o.t.Helper()
	if s := o.snapshot().State; d.Mode.Mode != mode || d.Mode.Reason != reason || s.Mode != string(mode) || s.Reason != string(reason) {
		o.t.Errorf("%s: %s, in etcd %+v; want %s (%s)", d, d.Detail, s, mode, reason)
	}
}

const peerTTL = time.Minute // see outage.peer

func TestOnlyAPeerThatIsSeenAliveDeclaresABrokerDead(t *testing.T) {
	everySecond := func(o *outage) func(time.Duration) { return func(time.Duration) { o.renewPeers() } }
	for _, c := range []struct {
		name   string
		in     func(o *outage, way *leaseAsks) (meanwhile func(elapsed time.Duration))
		mode   recovery.Mode
		reason recovery.Reason
		least  time.Duration // it waits at least so long
		most   time.Duration
	}{
		{"a peer renews", func(o *outage, _ *leaseAsks) func(time.Duration) { return everySecond(o) },
			recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"a peer lingers", func(*outage, *leaseAsks) func(time.Duration) { return nil },
			recovery.Active, recovery.ReasonFullClusterRestart, peerTTL - 5*time.Second, peerTTL + 5*time.Second},
		{"one lingers and one renews", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.peer("n0")
			o.past.memory.ConfirmedAt = o.snapshot().Revision
			return func(time.Duration) { o.renewPeer("n2") }
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"one renews, and of another there is no answer", func(o *outage, way *leaseAsks) func(time.Duration) {
			o.peer("n0")
			o.past.memory.ConfirmedAt = o.snapshot().Revision
			silent, _, _ := o.client.Registered(o.t.Context(), "n0")
			way.answer = func(a *pb.LeaseTimeToLiveResponse) error {
				if a.ID == silent.LeaseID {
					return context.DeadlineExceeded
				}
				return nil
			}
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"a leader that is elected lifts what lingers", func(o *outage, _ *leaseAsks) func(time.Duration) {
			lifted := false
			return func(d time.Duration) {
				if d >= 3*time.Second && !lifted {
					lifted = true
					o.store.ChangeLeader(time.Second)
				}
			}
		}, recovery.Active, recovery.ReasonFullClusterRestart, peerTTL, peerTTL + 10*time.Second},
		{"leaders are elected one after the other, and what lingers lingers on", func(o *outage, _ *leaseAsks) func(time.Duration) {
			return func(d time.Duration) {
				if d < 20*time.Second {
					o.store.ChangeLeader(0)
				}
			}
		}, recovery.Active, recovery.ReasonFullClusterRestart, peerTTL, peerTTL + 10*time.Second},
		{"leaders are elected one after the other, for ever", func(o *outage, _ *leaseAsks) func(time.Duration) {
			return func(time.Duration) { o.store.ChangeLeader(0) }
		}, recovery.Active, recovery.ReasonFullClusterRestart, peerTTL, peerTTL + 10*time.Second},
		{"leaders are elected one after the other, and a peer renews", func(o *outage, _ *leaseAsks) func(time.Duration) {
			return func(d time.Duration) {
				if d < 20*time.Second {
					o.store.ChangeLeader(0)
				}
				o.renewPeers()
			}
		}, recovery.Drained, recovery.ReasonStaleRestart, 20 * time.Second, 30 * time.Second},
		{"the only peer leaves while we look", func(o *outage, _ *leaseAsks) func(time.Duration) {
			return func(d time.Duration) {
				if d >= 2*time.Second && d < 3*time.Second {
					o.everybodyElseGoes()
				}
			}
		}, recovery.Active, recovery.ReasonFullClusterRestart, 2 * time.Second, 4 * time.Second},
		{"etcd is late to delete what has ended", func(o *outage, way *leaseAsks) func(time.Duration) {
			way.answer = func(a *pb.LeaseTimeToLiveResponse) error { a.TTL = max(0, a.TTL-55); return nil }
			return nil
		}, recovery.Active, recovery.ReasonFullClusterRestart, 8 * time.Second, 15 * time.Second},
		{"etcd counts no further", func(o *outage, way *leaseAsks) func(time.Duration) {
			way.answer = func(a *pb.LeaseTimeToLiveResponse) error { a.TTL = 20; return nil }
			return nil
		}, recovery.Active, recovery.ReasonFullClusterRestart, 20 * time.Second, 30 * time.Second},
		{"etcd does not say at first when a lease ends", func(_ *outage, way *leaseAsks) func(time.Duration) {
			began := time.Now()
			way.answer = func(a *pb.LeaseTimeToLiveResponse) error {
				if time.Since(began) > 3*time.Second && time.Since(began) < 10*time.Second {
					a.TTL = 9223372036
				}
				return nil
			}
			return nil
		}, recovery.Active, recovery.ReasonFullClusterRestart, peerTTL - 5*time.Second, peerTTL + 5*time.Second},
		{"the answers are of another term than the read before", func(_ *outage, way *leaseAsks) func(time.Duration) {
			way.answer = func(a *pb.LeaseTimeToLiveResponse) error { a.Header.RaftTerm--; a.TTL = 60; return nil }
			return nil
		}, recovery.Drained, recovery.ReasonStaleRestart, 32 * time.Second, 40 * time.Second},
		{"a key without a lease", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.everybodyElseGoes()
			o.put(o.client.Keys().Registration("n3"))
			o.past.memory.ConfirmedAt = o.snapshot().Revision
			return nil
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"a peer lives that registered after our last renewal, and before our registration went", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.past.memory.ConfirmedAt = o.first.Epoch
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"the same, and etcd has forgotten when", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.past.memory.ConfirmedAt = o.first.Epoch
			o.compact()
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"a peer lives that registered after our registration went", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.everybodyElseGoes()
			o.peerInSameEra("n3")
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"nobody knows when we were there last", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.past.memory.ConfirmedAt = 0
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"a peer lives that registered after our deadline", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.everybodyElseGoes()
			o.peerInSameEra("n3")
			o.past.memory.Deadline = time.Now().Add(-time.Hour)
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"the same, and we are back soon after it", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.everybodyElseGoes()
			o.peerInSameEra("n3")
			o.past.memory.Deadline = time.Now().Add(-10 * time.Second)
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"a peer came back within its TTL, and we soon after", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAnew("n2")
			o.past.memory.Deadline = time.Now().Add(-10 * time.Second)
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"a peer came back within its TTL, and we long after", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAnew("n2")
			o.past.memory.Deadline = time.Now().Add(-time.Hour)
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"a peer came back within its TTL, and when we went is not known", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAnew("n2")
			o.past.memory.Deadline = time.Time{}
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"a peer lives that registered in our future", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.everybodyElseGoes()
			o.peerInSameEra("n3")
			o.past.memory.Deadline = time.Now().Add(-time.Hour)
			o.stand("n3", "", time.Now().Add(5*time.Minute))
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"a peer comes back while we look", func(o *outage, _ *leaseAsks) func(time.Duration) {
			back := false
			o.past.memory.Deadline = time.Now().Add(-time.Hour)
			return func(d time.Duration) {
				if d >= 2*time.Second && !back {
					back = true
					o.standAnew("n2")
				}
				if back {
					o.renewPeer("n2")
				}
			}
		}, recovery.Active, recovery.ReasonFullClusterRestart, 2 * time.Second, 10 * time.Second},
		{"the sidecar of a peer was upgraded, and we are back soon after it", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAs("n2", "a", "a")
			o.past.memory.Deadline = time.Now().Add(-10 * time.Second)
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"so was its broker", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAs("n2", "a", "b")
			o.past.memory.Deadline = time.Now().Add(-10 * time.Second)
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"the sidecar was upgraded, and etcd has forgotten the time before", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAs("n2", "a", "a")
			o.past.memory.Deadline = time.Now().Add(-10 * time.Second)
			o.compact()
			return everySecond(o)
		}, recovery.Active, recovery.ReasonFullClusterRestart, 0, time.Second},
		{"the sidecar of a peer is upgraded while we look", func(o *outage, _ *leaseAsks) func(time.Duration) {
			o.standAs("n2", "a")
			anew := false
			return func(d time.Duration) {
				if d >= 2*time.Second && !anew {
					anew = true
					o.standAs("n2", "", "a")
				}
				o.renewPeer("n2")
			}
		}, recovery.Drained, recovery.ReasonStaleRestart, 4 * time.Second, 5 * time.Second},
		{"we may not ask, and the key stays", func(o *outage, way *leaseAsks) func(time.Duration) {
			way.answer = func(*pb.LeaseTimeToLiveResponse) error { return rpctypes.ErrGRPCPermissionDenied }
			return everySecond(o)
		}, recovery.Drained, recovery.ReasonStaleRestart, 32 * time.Second, 40 * time.Second},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o, way := newDead(t)
			meanwhile := c.in(o, way)
			began := time.Now()
			d, err := o.wait(2*time.Minute, meanwhile)
			if err != nil {
				t.Fatal(err)
			}
			o.is(d, c.mode, c.reason)
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("decided after %v, want %v to %v", took, c.least, c.most)
			}
		})
	}
}

func TestABrokerThatWaitsForProofOfLifeSaysWhomForAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, way := newDead(t)
		_, err := o.wait(time.Second, nil)
		if err == nil || !strings.Contains(err.Error(), "at the latest: waiting until the lease of n2 rises or ends") {
			t.Errorf("%v", err)
		}
		first := err.Error()
		if _, err = o.wait(30*time.Second, nil); err == nil || err.Error() != first {
			t.Errorf("%v, before %s: said anew", err, first)
		}
		for i, at := range way.times {
			if i > 0 && at.Sub(way.times[i-1]) < o.cfg.RenewInterval {
				t.Errorf("asked after %v and again after %v", way.times[i-1], at)
			}
		}
		if n := len(way.times); n < 5 {
			t.Errorf("asked %d times", n)
		}
		way.answer = func(*pb.LeaseTimeToLiveResponse) error { return rpctypes.ErrGRPCPermissionDenied }
		if _, err = o.wait(8*time.Second, nil); err == nil || !strings.Contains(err.Error(), "grant it read on /cluster/register/") {
			t.Errorf("%v", err)
		}
	})
}

func TestNothingIsDecidedWhileEtcdSaysNothingOfAnyLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, way := newDead(t)
		way.answer = func(*pb.LeaseTimeToLiveResponse) error { return context.DeadlineExceeded }
		for range 60 {
			if _, err := o.Establish(t.Context(), 0, false); err == nil || errors.Is(err, lease.ErrDeferred) {
				t.Fatalf("%v, want that etcd does not answer", err)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestALossIsNobodysVerdictUntilAPeerIsSeenAlive(t *testing.T) {
	for name, alive := range map[string]bool{"a peer lives": true, "a peer lingers": false} {
		inBubble(t, name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.lose()
			d, err := o.wait(2*time.Minute, func(time.Duration) {
				if alive {
					o.renewPeers()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if alive {
				o.is(d, recovery.Drained, recovery.ReasonRegistrationExpired)
			} else {
				o.is(d, recovery.Active, recovery.ReasonFleetExpired)
			}
		})
	}
}

func TestOfAThousandPeersAFewAreAskedAboutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, way := newDead(t)
		for i := range 200 {
			o.peer(fmt.Sprintf("p%03d", i))
		}
		o.past.memory.ConfirmedAt = o.snapshot().Revision
		if _, err := o.wait(time.Second, nil); err == nil {
			t.Error("decided")
		}
		if n := len(way.times); n != asksFirst {
			t.Errorf("asked about %d leases, want %d", n, asksFirst)
		}
		time.Sleep(o.cfg.RenewInterval)
		if _, err := o.Establish(t.Context(), 0, false); err == nil {
			t.Error("decided, and none has risen")
		}
		if n := len(way.times) - asksFirst; n != cluster.MostPeers {
			t.Errorf("none of the first has risen, and it asked about %d", n)
		}
		before := len(way.times)
		time.Sleep(o.cfg.RenewInterval)
		o.renewPeers()
		if _, err := o.Establish(t.Context(), 0, false); err != nil {
			t.Error(err)
		}
		if n := len(way.times) - before; n > 2*asksAtOnce {
			t.Errorf("%d were asked about, and the first had risen", n)
		}
	})
}

// renewPeer renews the lease of one peer.
func (o *outage) renewPeer(id string) {
	o.t.Helper()
	reg, _, err := o.client.Registered(o.t.Context(), id)
	if err == nil && reg != nil {
		_, err = o.client.KeepAlive(o.t.Context(), reg.LeaseID)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// peerInSameEra registers another broker while a key that is bound to no lease hides from it
// that nobody else is.
func (o *outage) peerInSameEra(id string) {
	o.t.Helper()
	hides := o.client.Keys().Registration("hides")
	o.put(hides)
	o.peer(id)
	if _, err := o.store.DeleteRange(o.t.Context(), &pb.DeleteRangeRequest{Key: []byte(hides)}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) put(key string) {
	o.t.Helper()
	if _, err := o.store.Put(o.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte("{}")}); err != nil {
		o.t.Fatal(err)
	}
}

// compact has etcd forget the past.
func (o *outage) compact() {
	o.t.Helper()
	if _, err := o.store.Compact(o.t.Context(), &pb.CompactionRequest{Revision: o.snapshot().Revision}); err != nil {
		o.t.Fatal(err)
	}
}

// standAnew is a sidecar of a peer that was restarted.
func (o *outage) standAnew(id string) { o.stand(id, "", time.Now()) }

// standAs has sidecars of a peer take its registration up, one after the other and each for
// that process of its broker. We are confirmed after the first; empty: there is none.
func (o *outage) standAs(id, first string, others ...string) {
	if first != "" {
		o.stand(id, first, time.Now())
		o.past.memory.ConfirmedAt = o.snapshot().Revision
	}
	for _, instance := range others {
		o.stand(id, instance, time.Now())
	}
}

func (o *outage) stand(id, instance string, at time.Time) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		_, err = o.client.Keep(o.t.Context(), cluster.RegisterRequest{Seen: seen, LeaseID: seen.Registration.LeaseID,
			Member: cluster.Member{Incarnation: id, Instance: instance, At: at}})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// Names next to each other share a rack. The first ones here lost their power with us.
func TestPeersOfOtherRacksAreLookedAtToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, way := newDead(t)
		for i := range 3 * cluster.MostPeers {
			o.peer(fmt.Sprintf("a%03d", i))
		}
		living := map[int64]bool{}
		for i := range cluster.MostPeers {
			id := fmt.Sprintf("b%03d", i)
			o.peer(id)
			reg, _, err := o.client.Registered(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			living[reg.LeaseID] = true
		}
		o.past.memory.ConfirmedAt = o.snapshot().Revision
		asked := 0
		way.answer = func(a *pb.LeaseTimeToLiveResponse) error {
			if living[a.ID] {
				asked++
				a.TTL = 60
			}
			return nil
		}
		d, err := o.wait(3*o.cfg.RenewInterval, nil)
		if err != nil {
			t.Fatalf("%d leases of the other rack asked about: %v", asked, err)
		}
		o.is(d, recovery.Drained, recovery.ReasonStaleRestart)
	})
}

// A whole rack that has gone while the others only linger is no reason to ask about nobody.
func TestWhoeverCannotTellIsReplacedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := newDead(t)
		o.cfg.FleetLossShare = 0
		for i := range cluster.MostPeers + 10 {
			o.peer(fmt.Sprintf("a%03d", i))
		}
		o.past.memory.ConfirmedAt = o.snapshot().Revision
		if _, err := o.wait(time.Second, nil); err == nil {
			t.Fatal("decided")
		}
		for _, id := range o.peersSeen.ids[:cluster.MostPeers+1] {
			o.ends(id)
		}
		time.Sleep(o.cfg.RenewInterval)
		if _, err := o.Establish(t.Context(), 0, false); err == nil {
			t.Fatal("decided, and others are registered")
		}
		time.Sleep(o.cfg.RenewInterval)
		o.renewPeers()
		o.establish(0)
		if d := o.decided(); d.Row != recovery.ReasonStaleRestart {
			t.Errorf("%s: %s", d, d.Detail)
		}
	})
}
