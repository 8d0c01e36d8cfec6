package recovery

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAViewIsStaleWhenADifferenceLasts(t *testing.T) {
	type look struct {
		at                 time.Duration
		assigned, believed []string
		unread             bool
	}
	a, b := []string{"/n/a"}, []string{"/n/a", "/n/b"}
	for _, row := range []struct {
		name  string
		looks []look
		stale bool
		first string
		count int
	}{
		{"nothing on either side", []look{{0, nil, nil, false}, {time.Hour, nil, nil, false}}, false, "", 0},
		{"the same, in another order", []look{{0, []string{"/n/b", "/n/a"}, b, false}, {time.Hour, b, []string{"/n/b", "/n/a"}, false}}, false, "", 0},
		{"an assignment is not seen for 10 s", []look{{0, b, a, false}, {10 * time.Second, b, a, false}}, false, "", 0},
		{"an assignment is not seen for longer", []look{{0, b, a, false}, {10*time.Second + 1, b, a, false}}, true, "/n/b", 1},
		{"what is gone is still believed", []look{{0, a, b, false}, {11 * time.Second, a, b, false}}, true, "/n/b", 1},
		{"it was seen in between", []look{{0, b, a, false}, {6 * time.Second, b, b, false}, {12 * time.Second, b, a, false}}, false, "", 0},
		{"the same topic, the other way round", []look{{0, b, a, false}, {6 * time.Second, a, b, false}, {12 * time.Second, a, b, false}}, false, "", 0},
		{"another topic each time", []look{{0, b, a, false}, {6 * time.Second, a, nil, false}, {12 * time.Second, []string{"/n/c"}, nil, false}}, false, "", 0},
		{"nothing was read in between", []look{{0, b, a, false}, {6 * time.Second, nil, nil, true}, {12 * time.Second, b, a, false}}, false, "", 0},
		{"nothing could be read since", []look{{0, b, a, false}, {11 * time.Second, b, a, false}, {20 * time.Second, nil, nil, true}}, true, "/n/b", 1},
		{"it sees again", []look{{0, b, a, false}, {11 * time.Second, b, a, false}, {20 * time.Second, b, b, false}}, false, "", 0},
		{"several", []look{{0, b, []string{"/n/0"}, false}, {11 * time.Second, b, []string{"/n/0"}, false}}, true, "/n/0", 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			var v StaleView
			for _, l := range row.looks {
				if l.unread {
					v = v.Unread()
				} else {
					v = v.Next(l.assigned, l.believed, planNow.Add(l.at))
				}
			}
			if v.Stale != row.stale || v.First != row.first || v.Count != row.count {
				t.Errorf("stale %v, %d, first %q; want %v, %d, %q", v.Stale, v.Count, v.First, row.stale, row.count, row.first)
			}
			if (v.Detail() != "") != row.stale {
				t.Errorf("%q", v.Detail())
			}
		})
	}
}

// views is a source that shows what it was given.
type views struct {
	mu                 sync.Mutex
	assigned, believed []string
	err                error
	looks              int
}

func (s *views) Compare(context.Context, ViewOrders) (is, believed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.assigned, s.believed, s.err
}

func (s *views) set(change func()) { s.mu.Lock(); defer s.mu.Unlock(); change() }

func TestABlindBrokerIsFoundWithinAnAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &views{assigned: []string{"/n/a"}, believed: []string{"/n/a"}}
		v := NewViewer(s, 30*time.Second, 0, discard())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = v.Run(ctx) })
		defer func() { cancel(); running.Wait() }()

		passes(time.Hour)
		if s.looks != 0 {
			t.Error("it looks without a broker that is attached")
		}
		attached := ViewOrders{Epoch: 1, Instance: "a", Attached: true}
		v.SetOrders(attached)
		passes(5 * time.Minute)
		if v.View().Stale || s.looks > 11 {
			t.Errorf("%+v after %d looks", v.View(), s.looks)
		}
		s.set(func() { s.assigned = []string{"/n/a", "/n/b"} })
		passes(30*time.Second + ViewPatience + 2*viewLook)
		if !v.View().Stale {
			t.Error("not found")
		}
		select {
		case <-v.Changes():
		default:
			t.Error("nobody is told")
		}
		s.set(func() { s.err = errors.New("etcd is away") })
		passes(time.Minute)
		if !v.View().Stale {
			t.Error("cleared by a read that failed")
		}
		s.set(func() { s.err, s.believed = nil, s.assigned })
		passes(time.Minute)
		if v.View().Stale {
			t.Error("not cleared")
		}
		s.set(func() { s.believed = nil })
		passes(5 * time.Minute)
		attached.Instance = "b"
		v.SetOrders(attached)
		if v.View().Stale {
			t.Error("another process of the broker is not the blind one")
		}
	})
}
