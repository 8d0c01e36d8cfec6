package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// forgetful is an etcd that has lost leases and kept their keys.
type forgetful struct {
	grpc.ClientConnInterface
	lost  map[int64]bool
	fails map[int64]error
	asked []int64
}

func (f *forgetful) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if r, ok := args.(*pb.LeaseTimeToLiveRequest); ok {
		f.asked = append(f.asked, r.ID)
		if f.lost[r.ID] {
			*reply.(*pb.LeaseTimeToLiveResponse) = pb.LeaseTimeToLiveResponse{ID: r.ID, TTL: -1}
			return nil
		}
		if err := f.fails[r.ID]; err != nil {
			return err
		}
	}
	return f.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func TestARegistrationThatOutlivesItsLeaseIsFoundByTheOneBeforeIt(t *testing.T) {
	for name, c := range map[string]struct {
		registered string // ids; lost: and its lease is; bare: under none
		asks       string
		want       string
		questions  int
	}{
		"nobody is registered":         {"", "b", "", 0},
		"alone":                        {"b", "b", "", 1},
		"all is well":                  {"a b c d", "b", "", 2},
		"its own":                      {"a b-lost c d", "b-lost", "b-lost", 2},
		"the next":                     {"a b c-lost d", "b", "c-lost", 3},
		"the one behind the next":      {"a b c-lost d", "a", "", 2},
		"round":                        {"a-lost b c d", "d", "a-lost", 3},
		"without a lease":              {"a b-bare c d", "a", "b-bare", 2},
		"without a registration":       {"a c d", "b", "", 1},
		"several in a row, and around": {"a-bare b-lost c d-lost e-lost", "c", "d-lost e-lost a-bare b-lost", 4},
		"no more than a bound":         {"a b1-lost b2-lost b3-lost b4-lost b5-lost b6-lost b7-lost b8-lost b9-lost", "a", "b1-lost b2-lost b3-lost b4-lost b5-lost b6-lost b7-lost b8-lost", 9},
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.New(memory.Config{})
			f := &forgetful{ClientConnInterface: s.Conn(nil), lost: map[int64]bool{}}
			client := cluster.Over(cluster.Config{}, f, nil)
			for _, id := range strings.Fields(c.registered) {
				put := &pb.PutRequest{Key: []byte("/cluster/register/" + id)}
				if !strings.HasSuffix(id, "-bare") {
					granted, err := s.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 60})
					if err != nil {
						t.Fatal(err)
					}
					put.Lease, f.lost[granted.ID] = granted.ID, strings.HasSuffix(id, "-lost")
				}
				if _, err := s.Put(t.Context(), put); err != nil {
					t.Fatal(err)
				}
			}
			got, err := client.Outlived(t.Context(), c.asks)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, r := range got {
				ids = append(ids, r.BrokerID)
				if r.ModRevision == 0 || (r.LeaseID == 0) != strings.HasSuffix(r.BrokerID, "-bare") {
					t.Errorf("%+v", r)
				}
			}
			if !slices.Equal(ids, strings.Fields(c.want)) || len(f.asked) != c.questions {
				t.Errorf("found %q with %d questions, want %q with %d", ids, len(f.asked), c.want, c.questions)
			}
		})
	}
}

func TestALeaseThatCannotBeReadIsNotTakenForGone(t *testing.T) {
	s := memory.New(memory.Config{})
	f := &forgetful{ClientConnInterface: s.Conn(nil), fails: map[int64]error{}}
	for i, id := range []string{"a", "b"} {
		granted, err := s.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 60})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Put(t.Context(), &pb.PutRequest{Key: []byte("/cluster/register/" + id), Lease: granted.ID}); err != nil {
			t.Fatal(err)
		}
		f.fails[granted.ID] = fmt.Errorf("no answer %d", i)
	}
	got, err := cluster.Over(cluster.Config{}, f, nil).Outlived(t.Context(), "a")
	if len(got) > 0 || err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v; want an error", got, err)
	}
}
