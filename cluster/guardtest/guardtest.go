// Package guardtest holds the guards of what registrations, planned stops and moves write against
// a store: package memory's here, a real etcd in lab/clustertest. Each guard refuses a change
// that no other one does. So each is taken out of the request once: then what it is there for
// must be written.
package guardtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
)

// write is a transaction of package cluster.
type write struct {
	name string
	// ready makes a cluster and looks at it. What it returns writes what rests on that look,
	// and calls meanwhile before the transaction that is meant.
	ready  func(s *stand) func(meanwhile func()) error
	guards []guard
	part   bool // the others of its guards are those of another write
}

// guard is one by its place in the request, and what it alone refuses.
type guard struct {
	at     int
	name   string
	change func(s *stand)
}

// Run tests each guard on a store, where connect has a client's settings and connection.
func Run(t *testing.T, connect func(t *testing.T) (cluster.Config, grpc.ClientConnInterface)) {
	for _, w := range writes {
		for _, g := range w.guards {
			t.Run(w.name+"/"+g.name, func(t *testing.T) {
				s := newStand(t, connect)
				if err := w.ready(s)(func() { g.change(s) }); !errors.Is(err, cluster.ErrChanged) {
					t.Errorf("got %v, want that it is refused", err)
				}
				if !w.part && s.sent != len(w.guards) {
					t.Errorf("%d guards were sent, and %d are held here", s.sent, len(w.guards))
				}
			})
			t.Run(w.name+"/"+g.name+", and this guard is not sent", func(t *testing.T) {
				s := newStand(t, connect)
				if err := w.ready(s)(func() { g.change(s); s.without = g.at }); err != nil {
					t.Errorf("got %v: another guard refuses the change as well", err)
				}
			})
		}
	}
}

// stand is a cluster and a client of it, whose requests can be deprived of a guard.
type stand struct {
	grpc.ClientConnInterface
	*cluster.Client
	t       *testing.T
	seen    cluster.Snapshot
	journal cluster.JournalWrite
	held    int64  // lease that the registration is under
	without int    // guard that is not sent; -1: all are
	sent    int    // guards of the last transaction that had some, before that
	before  func() // is called before the first of these; nil: nothing is
}

func newStand(t *testing.T, connect func(t *testing.T) (cluster.Config, grpc.ClientConnInterface)) *stand {
	cfg, conn := connect(t)
	s := &stand{ClientConnInterface: conn, t: t, without: -1}
	s.Client = cluster.Over(cfg, s, nil)
	return s
}

// Invoke implements grpc.ClientConnInterface.
func (s *stand) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if req, ok := args.(*pb.TxnRequest); ok && len(req.Compare) > 0 {
		if before := s.before; before != nil {
			s.before = nil
			before()
		}
		if s.sent = len(req.Compare); s.without >= 0 {
			args = &pb.TxnRequest{Compare: slices.Delete(slices.Clone(req.Compare), s.without, s.without+1), Success: req.Success, Failure: req.Failure}
		}
	}
	return s.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (s *stand) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stand) put(key, value string) { s.putUnder(key, value, 0) }

// putUnder and remove are somebody else's.
func (s *stand) putUnder(key, value string, lease int64) {
	s.t.Helper()
	_, err := pb.NewKVClient(s.ClientConnInterface).Put(s.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease})
	s.ok(err)
}

func (s *stand) remove(key string) {
	s.t.Helper()
	_, err := pb.NewKVClient(s.ClientConnInterface).DeleteRange(s.t.Context(), &pb.DeleteRangeRequest{Key: []byte(key)})
	s.ok(err)
}

func (s *stand) lease() int64 {
	s.t.Helper()
	id, _, err := s.Grant(s.t.Context(), time.Minute)
	s.ok(err)
	return id
}

func (s *stand) look(who cluster.Who) {
	s.t.Helper()
	var err error
	s.seen, err = s.SnapshotOf(s.t.Context(), who)
	s.ok(err)
}

func (s *stand) claimant() cluster.Claimant {
	return cluster.Claimant{BrokerID: "b1", Incarnation: "i", Epoch: s.seen.Registration.CreateRevision, LeaseID: s.held}
}

const (
	drained = `{"mode":"drained","reason":"disk swap","by":"operator"}`
	active  = `{"mode":"active","reason":"boot","by":"holdfast"}`
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// b1 is the broker, known to the cluster; registered: under a lease of its own.
func (s *stand) b1(registered bool) {
	s.t.Helper()
	s.put(s.Keys().Era(), `{"era":1}`)
	s.put(s.Keys().State("b1"), active)
	s.put(s.Keys().Member("b1"), `{"era":1,"revision":1,"incarnation":"i"}`)
	if registered {
		s.held = s.lease()
		s.putUnder(s.Keys().Registration("b1"), `{"n":1}`, s.held)
	}
	s.look(cluster.Who{Name: "b1", Registered: "b1"})
}

// restarted is b1 whose process 11 is followed by process 22: both are registered.
func (s *stand) restarted(topics int) cluster.Succession {
	s.t.Helper()
	s.put(s.Keys().Era(), `{"era":1}`)
	for _, id := range []string{"11", "22"} {
		s.putUnder(s.Keys().Registration(id), `{}`, s.lease())
		s.put(s.Keys().State(id), active)
	}
	for i := range topics {
		s.put(s.Keys().Assignment("11", fmt.Sprintf("/ns/t%d", i)), "null")
	}
	s.look(cluster.Who{Name: "b1", Registered: "22", Former: "11"})
	return cluster.Succession{Seen: s.seen, LeaseID: s.lease(), Retire: true, Move: true, Member: cluster.Member{Name: "b1", Era: 1, Incarnation: "i", At: at}}
}

func (s *stand) register() error {
	_, err := s.Register(s.t.Context(), cluster.RegisterRequest{
		LeaseID: s.lease(),
		Value:   []byte("{}"),
		Seen:    s.seen,
		State:   &cluster.State{Mode: cluster.ModeActive, Reason: "planned_restart", By: "holdfast", At: at},
		Member:  cluster.Member{Incarnation: "i", At: at},
	})
	return err
}

// keep stands by the registration that was seen.
func (s *stand) keep(lease int64, value []byte) error {
	_, err := s.Keep(s.t.Context(), cluster.RegisterRequest{Seen: s.seen, LeaseID: lease, Value: value, Member: cluster.Member{Incarnation: "i", At: at},
		State: &cluster.State{Mode: cluster.ModeActive, Reason: "fast_restart", By: "holdfast", At: at}})
	return err
}
