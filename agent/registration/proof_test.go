package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"holdfast/agent/lease"
	"holdfast/cluster"
)

// liar is a way to an etcd whose answers can be changed.
type liar struct {
	grpc.ClientConnInterface
	read    func(*pb.RangeResponse)
	renewed func(*pb.LeaseKeepAliveResponse)
}

func (l *liar) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := l.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if answer, ok := reply.(*pb.RangeResponse); ok && err == nil && l.read != nil {
		l.read(answer)
	}
	return err
}

func (l *liar) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := l.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	return liarStream{s, l}, err
}

type liarStream struct {
	grpc.ClientStream
	liar *liar
}

func (s liarStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if answer, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil && s.liar.renewed != nil {
		s.liar.renewed(answer)
	}
	return err
}

// newLiedTo returns a registrar whose own registration stands, and the way on which it is lied to.
func newLiedTo(t *testing.T) (*outage, *liar) {
	o := newOutage(t, "drain")
	l := &liar{ClientConnInterface: o.store.Conn(nil)}
	o.Line = directLine{cluster.Over(cluster.Config{}, l, slog.New(slog.DiscardHandler))}
	return o, l
}

// valueOfRun is what a process registers.
func valueOfRun(run string) []byte { return fmt.Appendf(nil, `{"incarnation":"mine","run":%q}`, run) }

// isOnly reports whether an error means one thing, and no other that its readers look for.
func isOnly(err, want error) bool {
	for _, is := range []error{lease.ErrLost, lease.ErrForeign, lease.ErrUnproven, cluster.ErrChanged} {
		if errors.Is(err, is) != (is == want) {
			return false
		}
	}
	return true
}

func TestAGrantThatRestsOnARenewalIsProvenFirst(t *testing.T) {
	t.Run("the leader changed once", func(t *testing.T) {
		o, l := newLiedTo(t)
		renewals, reads := 0, 0
		l.renewed = func(*pb.LeaseKeepAliveResponse) { renewals++ }
		l.read = func(r *pb.RangeResponse) {
			if reads++; reads == 1 {
				r.Header.RaftTerm++
			}
		}
		if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || renewals != 2 || reads != 2 || len(o.outcomes) != 2 {
			t.Errorf("%+v after %d renewals and %d proofs, %d outcomes: want the second renewal to count", g, renewals, reads, len(o.outcomes))
		}
	})
	t.Run("a deposed leader renews", func(t *testing.T) {
		o, l := newLiedTo(t)
		l.read = func(r *pb.RangeResponse) { r.Header.RaftTerm++ }
		_, err := o.Establish(t.Context(), o.first.LeaseID, false)
		if !isOnly(err, lease.ErrUnproven) || len(o.outcomes) != 1 {
			t.Errorf("%v, %d outcomes: want none to be taken up", err, len(o.outcomes))
		}
	})
	t.Run("the key went meanwhile", func(t *testing.T) {
		o, l := newLiedTo(t)
		l.read = func(r *pb.RangeResponse) { r.Kvs = nil }
		if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !isOnly(err, lease.ErrLost) || len(o.outcomes) != 1 {
			t.Errorf("%v, %d outcomes", err, len(o.outcomes))
		}
	})
	t.Run("another process has the key", func(t *testing.T) {
		o, l := newLiedTo(t)
		l.read = func(r *pb.RangeResponse) { r.Kvs[0].Lease++ }
		if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !isOnly(err, lease.ErrForeign) || len(o.outcomes) != 1 {
			t.Errorf("%v, %d outcomes", err, len(o.outcomes))
		}
	})
	t.Run("the read is not answered", func(t *testing.T) {
		o, _ := newLiedTo(t)
		o.store.SetFault(func(method string) error {
			if strings.HasSuffix(method, "/Range") {
				return context.DeadlineExceeded
			}
			return nil
		})
		if _, err := o.Establish(t.Context(), o.first.LeaseID, false); err == nil || errors.Is(err, lease.ErrLost) || len(o.outcomes) != 1 {
			t.Errorf("%v, %d outcomes", err, len(o.outcomes))
		}
	})
	t.Run("a new lease needs none", func(t *testing.T) {
		o, l := newLiedTo(t)
		l.read = func(*pb.RangeResponse) { t.Error("read") }
		o.everybodyElseGoes()
		if g := o.establish(0); g.Term != 0 || g.LeaseID == o.first.LeaseID {
			t.Errorf("%+v", g)
		}
	})
}

// Each reading of this clock is a moment later than the one before.
func TestAGrantCountsFromTheSendOfItsRenewal(t *testing.T) {
	o, l := newLiedTo(t)
	now := lease.Instant(time.Hour)
	o.Clock = func() lease.Instant { now++; return now }
	var renewedAt lease.Instant
	l.renewed = func(*pb.LeaseKeepAliveResponse) { now += lease.Instant(time.Second); renewedAt = now }
	if g := o.establish(o.first.LeaseID); g.SentAt > renewedAt.Add(-time.Second) || g.SentAt <= lease.Instant(time.Hour) {
		t.Errorf("sent at %v, answered at %v", g.SentAt, renewedAt)
	}
}

func TestAGrantHasTheTTLThatEtcdGranted(t *testing.T) {
	o := newOutage(t, "drain")
	o.everybodyElseGoes()                       // nobody's life is asked for
	o.Config.LeaseTTL = 1500 * time.Millisecond // etcd makes 2 s of it
	g := o.establish(0)
	o.takeUp()
	if again := o.establish(g.LeaseID); g.TTL != 2*time.Second || again.TTL != 2*time.Second || again.LeaseID != g.LeaseID {
		t.Errorf("%+v, then %+v", g, again)
	}
}

func TestALeaseThatARenewalDoesNotFindIsNotLostWhileItsKeyIsThere(t *testing.T) {
	o, l := newLiedTo(t)
	l.renewed = func(r *pb.LeaseKeepAliveResponse) { r.TTL = 0 }
	_, err := o.Establish(t.Context(), o.first.LeaseID, false)
	if err == nil || errors.Is(err, lease.ErrLost) || len(o.outcomes) != 1 {
		t.Errorf("%v, %d outcomes: want an attempt that failed", err, len(o.outcomes))
	}
	l.renewed = nil
	if g := o.establish(o.first.LeaseID); g.LeaseID != o.first.LeaseID || g.Epoch != o.first.Epoch {
		t.Errorf("%+v, want what there was, %+v", g, o.first)
	}
}

func TestOnlyOurOwnRegistrationIsAProof(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(o *outage, g *lease.Grant)
		want   error
	}{
		{"as granted", func(*outage, *lease.Grant) {}, nil},
		{"another lease", func(_ *outage, g *lease.Grant) { g.LeaseID++ }, lease.ErrForeign},
		{"registered anew", func(_ *outage, g *lease.Grant) { g.Epoch-- }, lease.ErrForeign},
		{"another process", func(o *outage, _ *lease.Grant) { o.Run = "another" }, lease.ErrForeign},
		{"adopted: the bytes are the broker's", func(o *outage, _ *lease.Grant) { o.Run, o.Config.Registration = "another", "adopt" }, nil},
		{"gone", func(o *outage, _ *lease.Grant) { o.lose() }, lease.ErrLost},
		{"etcd is away", func(o *outage, _ *lease.Grant) { o.store.LoseLeader() }, rpctypes.ErrNoLeader},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			g := o.first
			c.change(o, &g)
			term, err := o.Prove(t.Context(), g)
			if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if answered := c.name != "etcd is away"; answered != (term != 0) {
				t.Errorf("term %d", term)
			}
		})
	}
}

// A restarted sidecar finds what the process before it wrote, and a cloned volume makes two
// of one. The newest wins, and the older one changes nothing any more.
func TestTheNewestProcessOfAnIncarnationHasTheRegistration(t *testing.T) {
	o := newOutage(t, "drain")
	process := func(run string) *Registrar {
		past := o.past
		past.Value = valueOfRun(run)
		d := o.Deps
		d.Run, d.Life = run, func() Life { return past }
		return New(d)
	}
	restarted, copied := process("restarted"), process("copied")
	g, err := restarted.Establish(t.Context(), o.first.LeaseID, false)
	if v, _ := o.snapshot().Registration.Parse(); err != nil || g.LeaseID != o.first.LeaseID || g.Epoch != o.first.Epoch || v.Run != "restarted" {
		t.Fatalf("%+v (%v), registered %+v: want the registration that there was, with the run of the new process", g, err, v)
	}
	if _, err := o.Prove(t.Context(), o.first); !errors.Is(err, lease.ErrForeign) {
		t.Errorf("the process before proves %v", err)
	}
	if _, err := copied.Establish(t.Context(), o.first.LeaseID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := restarted.Prove(t.Context(), g); !errors.Is(err, lease.ErrForeign) {
		t.Errorf("the older process proves %v", err)
	}
	before := o.snapshot()
	if _, err := restarted.Establish(t.Context(), g.LeaseID, false); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("the older process: %v, want a conflict", err)
	}
	if after := o.snapshot(); after.Revision != before.Revision || after.Registration.LeaseID != g.LeaseID {
		t.Errorf("revision %d, before %d: the older process has written", after.Revision, before.Revision)
	}
	if _, err := copied.Prove(t.Context(), g); err != nil {
		t.Error(err)
	}
}
