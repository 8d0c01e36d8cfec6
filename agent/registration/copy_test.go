package registration

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// A sidecar has a state directory that is not where it was, and finds the registration of
// another process with the same one.
func TestAMovedStateDirectoryIsTakenUpWhenNobodyRenews(t *testing.T) {
	apart := recovery.LooksApart(natsSettings().Effective().RenewInterval)
	const onNew = "nobody does, and etcd is asked on new connections"
	for _, c := range []struct {
		name      string
		change    func(o *outage, l *liar)
		meanwhile func(o *outage, l *liar)
		first     error
		second    error
	}{
		{"nobody does", nil, nil, lease.ErrDeferred, nil},
		{onNew, nil, nil, lease.ErrDeferred, nil},
		{"somebody does", nil, func(o *outage, _ *liar) { o.renew() }, lease.ErrDeferred, lease.ErrConflict},
		{"a new leader lifted its lease", nil, func(o *outage, _ *liar) { o.store.ChangeLeader(0) }, lease.ErrDeferred, lease.ErrDeferred},
		{"a deposed leader counts on", nil, func(_ *outage, l *liar) {
			l.read = func(r *pb.RangeResponse) { r.Header.RaftTerm++ }
		}, lease.ErrDeferred, lease.ErrDeferred},
		{"its lease is nearly over", func(*outage, *liar) { time.Sleep(24 * time.Second) }, nil, nil, nil},
		{"the directory is where it was", func(o *outage, _ *liar) { o.Moved = false }, nil, nil, nil},
		{"the process registered it itself", func(o *outage, _ *liar) { o.Run, o.past.Value = "before", valueOfRun("before") }, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, l := newLiedTo(t)
				born := time.Now()
				o.Clock = func() lease.Instant { return lease.Instant(time.Since(born)) }
				o.past.Value = valueOfRun("before")
				o.Run, o.stood = "before", false
				o.establish(o.first.LeaseID) // writes it with that run
				o.Run, o.Moved, o.stood = "after", true, false
				o.past.Value, o.past.Instance = valueOfRun("after"), "process-2"
				if c.change != nil {
					c.change(o, l)
				}
				try := func(when string, want error) {
					t.Helper()
					if _, err := o.Establish(t.Context(), o.first.LeaseID, c.name == onNew); !errors.Is(err, want) || (err == nil) != (want == nil) {
						t.Errorf("%s: %v, want %v", when, err, want)
					}
					if rival := o.Rival.Load(); rival != (want != nil) {
						t.Errorf("%s: the broker is fenced: %t", when, rival)
					}
				}
				before := o.snapshot().Revision
				try("at first", c.first)
				if c.first == nil {
					return
				}
				time.Sleep(apart / 2)
				try("too early for a second look", c.first)
				time.Sleep(apart/2 + time.Millisecond)
				if c.meanwhile != nil {
					c.meanwhile(o, l)
				}
				try("at the second look", c.second)
				if c.second == nil {
					return
				}
				if now := o.snapshot().Revision; now != before {
					t.Error("etcd was changed")
				}
				l.read = nil
				try("a moment later", c.second)
				time.Sleep(apart + time.Millisecond) // nobody renews any more
				try("when it is dead", nil)
			})
		})
	}
}

// renew is the other sidecar's.
func (o *outage) renew() {
	o.t.Helper()
	if _, err := o.client.KeepAlive(o.t.Context(), o.first.LeaseID); err != nil {
		o.t.Fatal(err)
	}
}

// Who bound an adopted registration is known by the member record that was written with it. What is noted
// later beside a registration that stays does not let another sidecar take it.
func TestAnAdoptedRegistrationStaysBoundWhateverIsNotedBesideIt(t *testing.T) {
	for name, noted := range map[string]func(o *outage){
		"the mode, written again": func(o *outage) {
			gone := &pb.DeleteRangeRequest{Key: []byte(o.client.Keys().State("n1"))}
			if _, err := o.store.DeleteRange(o.t.Context(), gone); err != nil {
				o.t.Fatal(err)
			}
		},
		"a cut": func(o *outage) { o.past.CutFrom = time.Now().Add(-25 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.Config.Registration = "adopt"
			g := o.establish(0)
			o.takeUp()
			noted(o)
			o.establish(g.LeaseID)
			other := New(o.Deps)
			other.Life = func() Life { // beside the same broker, with another state directory
				l := o.now()
				l.Past, l.Mode, l.CutFrom = Past{Incarnation: "another"}, recovery.ModeRecord{}, time.Time{}
				return l
			}
			if _, err := other.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrConflict) {
				t.Errorf("another sidecar took it over: %v", err)
			}
		})
	}
}
