package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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
	apart := recovery.LooksApart(natsDefaults().Effective().RenewInterval)
	for _, c := range []struct {
		name      string
		change    func(o *outage, l *liar)
		meanwhile func(o *outage, l *liar)
		first     error
		second    error
	}{
		{"nobody does", nil, nil, lease.ErrDeferred, nil},
		{"somebody does", nil, func(o *outage, _ *liar) { o.renew() }, lease.ErrDeferred, lease.ErrConflict},
		{"a new leader lifted its lease", nil, func(o *outage, _ *liar) { o.store.ChangeLeader(0) }, lease.ErrDeferred, lease.ErrDeferred},
		{"a deposed leader counts on", nil, func(_ *outage, l *liar) {
			l.read = func(r *pb.RangeResponse) { r.Header.RaftTerm++ }
		}, lease.ErrDeferred, lease.ErrDeferred},
		{"its lease is nearly over", func(*outage, *liar) { time.Sleep(24 * time.Second) }, nil, nil, nil},
		{"the directory is where it was", func(o *outage, _ *liar) { o.moved = false }, nil, nil, nil},
		{"the process registered it itself", func(o *outage, _ *liar) { o.run, o.past.value = "before", valueOfRun("before") }, nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, l := newLiedTo(t)
				born := time.Now()
				o.clock = func() lease.Instant { return lease.Instant(time.Since(born)) }
				o.past.value = valueOfRun("before")
				o.run, o.stood = "before", false
				o.establish(o.first.LeaseID) // writes it with that run
				o.run, o.moved, o.stood = "after", true, false
				o.past.value, o.past.instance = valueOfRun("after"), "process-2"
				rival := false
				o.rival = func(is bool) { rival = is }
				if c.change != nil {
					c.change(o, l)
				}
				try := func(when string, want error) {
					t.Helper()
					if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, want) || (err == nil) != (want == nil) {
						t.Errorf("%s: %v, want %v", when, err, want)
					}
					if rival != (want != nil) {
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

func TestACopyOfAStateDirectoryIsElsewhere(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "state")
	d, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	m := memory{Place: d.place()}
	if m.Place == "" || m.movedTo(d.place()) {
		t.Errorf("%q: moved without being moved", m.Place)
	}
	aside := filepath.Join(base, "aside")
	if err := os.Rename(path, aside); err != nil {
		t.Fatal(err)
	}
	if m.movedTo((&stateDir{path: aside}).place()) {
		t.Error("a directory that got another name is another one")
	}
	if err := os.CopyFS(path, os.DirFS(aside)); err != nil {
		t.Fatal(err)
	}
	if !m.movedTo(d.place()) {
		t.Error("a copy is taken for the directory")
	}
	if another := "another" + strings.TrimLeft(m.Place, "0123456789abcdef"); !m.movedTo(another) {
		t.Error("the same directory on another machine is taken for this one")
	}
	if (memory{}).movedTo(d.place()) || m.movedTo("") {
		t.Error("what is not known condemns")
	}
}

func TestNobodyIsStoppedOnASuspicion(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.inLoop(func() {
			attached, instance := l.everAttached, l.memory.Instance
			l.everAttached, l.memory.Instance = false, "another"
			l.rival.Store(true)
			suspected := l.ladderFacts(l.verdict).Stop
			l.conflict = "a copy"
			if proven := l.ladderFacts(l.verdict).Stop; suspected || !proven {
				t.Errorf("stopped when suspected %t, when proven %t", suspected, proven)
			}
			l.everAttached, l.memory.Instance, l.conflict = attached, instance, ""
			l.rival.Store(false)
		})
	})
}
