package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestWhichTopicsAreWoken(t *testing.T) {
	const patience = time.Minute
	type look struct {
		at    time.Duration
		leads bool
		taker bool
		seen  []Marker
	}
	one, two := Marker{"/n/a", 7}, Marker{"/n/b", 8}
	for _, row := range []struct {
		name  string
		looks []look
		due   []Marker
	}{
		{"one that is new", []look{{0, true, true, []Marker{one}}}, nil},
		{"one that stands for as long as it may", []look{{0, true, true, []Marker{one}}, {patience, true, true, []Marker{one}}}, nil},
		{"one that stands for longer", []look{{0, true, true, []Marker{one}}, {patience + 1, true, true, []Marker{one}}}, []Marker{one}},
		{"one that was put meanwhile", []look{{0, true, true, []Marker{{"/n/a", 5}}}, {patience + 1, true, true, []Marker{one}}}, nil},
		{"one that was gone meanwhile", []look{{0, true, true, []Marker{one}}, {1, true, true, nil}, {patience + 1, true, true, []Marker{one}}}, nil},
		{"while another broker leads", []look{{0, false, true, []Marker{one}}, {patience + 1, false, true, []Marker{one}}}, nil},
		{"by one that leads since just now", []look{{0, false, true, []Marker{one}}, {patience + 1, true, true, []Marker{one}}}, nil},
		{"while no broker would take it", []look{{0, true, true, []Marker{one}}, {patience + 1, true, false, []Marker{one}}}, nil},
		{"as soon as one would", []look{{0, true, false, []Marker{one}}, {patience + 1, true, true, []Marker{one}}}, []Marker{one}},
		{"the oldest first", []look{{0, true, true, []Marker{two}}, {1, true, true, []Marker{one, two}}, {2*patience + 2, true, true, []Marker{one, two}}}, []Marker{two, one}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var o Overlooked
			var due []Marker
			for _, l := range row.looks {
				o, due = o.Next(WakeFacts{Now: planNow.Add(l.at), Leads: l.leads, Taker: l.taker, Markers: l.seen, Patience: patience})
			}
			if !slices.Equal(due, row.due) {
				t.Errorf("woken %v, want %v", due, row.due)
			}
		})
	}
}

// waiting is a store with markers that nobody takes.
type waiting struct {
	mu       sync.Mutex
	markers  map[string]int64
	leads    bool
	revision int64
	puts     []string
	err      error
	taken    bool // somebody takes each marker just before it is put
	during   func()
}

func (s *waiting) Leads(context.Context) (bool, error) { return s.leads, s.err }
func (s *waiting) Taker(context.Context) (bool, error) { return true, nil }
func (s *waiting) Unassigned(context.Context) (list []Marker, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, revision := range s.markers {
		list = append(list, Marker{topic, revision})
	}
	return list, nil
}

func (s *waiting) Wake(_ context.Context, m Marker) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.during != nil {
		s.during()
	}
	if s.taken || s.markers[m.Topic] != m.ModRevision {
		return false, nil
	}
	s.revision++
	s.markers[m.Topic] = s.revision
	s.puts = append(s.puts, m.Topic)
	return true, nil
}

func (s *waiting) woken() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.puts) }

func inWaking(t *testing.T, s *waiting, claim func(w *Waker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := NewWaker(s, 30*time.Second, nil, discard(), prometheus.NewPedanticRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.Run(ctx) })
		claim(w)
		cancel()
		running.Wait()
	})
}

func manyWaiting(n int) *waiting {
	s := &waiting{markers: map[string]int64{}, leads: true, revision: 1000}
	for i := range n {
		s.markers[fmt.Sprintf("/n/%03d", i)] = int64(i + 1)
	}
	return s
}

func TestOverlookedTopicsAreWokenAFewAtATime(t *testing.T) {
	s := manyWaiting(40)
	inWaking(t, s, func(w *Waker) {
		passes(time.Hour)
		if s.woken() != 0 {
			t.Error("woken without orders")
		}
		w.SetOrders(WakeOrders{Epoch: 1, Attached: true})
		for _, step := range []struct {
			after time.Duration
			woken int
		}{{61 * time.Second, 0}, {30 * time.Second, 16}, {30 * time.Second, 32}, {30 * time.Second, 40}, {29 * time.Second, 40}} {
			passes(step.after)
			if got := s.woken(); got != step.woken {
				t.Errorf("%d woken, want %d", got, step.woken)
			}
		}
	})
}

func TestNothingIsWokenWhileDetachedOrPaused(t *testing.T) {
	for name, o := range map[string]WakeOrders{"detached": {Epoch: 1}, "paused": {Epoch: 1, Attached: true, Paused: true}} {
		t.Run(name, func(t *testing.T) {
			s := manyWaiting(1)
			inWaking(t, s, func(w *Waker) {
				w.SetOrders(o)
				passes(time.Hour)
				if s.woken() != 0 {
					t.Error("woken")
				}
			})
		})
	}
}

func TestARoundEndsWhenItsOrdersDo(t *testing.T) {
	s := manyWaiting(10)
	inWaking(t, s, func(w *Waker) {
		s.during = func() { w.SetOrders(WakeOrders{Epoch: 1}) }
		w.SetOrders(WakeOrders{Epoch: 1, Attached: true})
		passes(2 * time.Minute)
		if got := s.woken(); got != 1 {
			t.Errorf("%d woken, want the one that was on its way", got)
		}
	})
}

func TestWhatSomebodyTookIsLeftAlone(t *testing.T) {
	s := manyWaiting(3)
	s.taken = true
	inWaking(t, s, func(w *Waker) {
		w.SetOrders(WakeOrders{Epoch: 1, Attached: true})
		passes(5 * time.Minute)
		if s.woken() != 0 {
			t.Error("woken")
		}
	})
}

func TestAReadThatFailedWakesNothing(t *testing.T) {
	s := manyWaiting(3)
	s.err = errors.New("etcd is away")
	inWaking(t, s, func(w *Waker) {
		w.SetOrders(WakeOrders{Epoch: 1, Attached: true})
		passes(5 * time.Minute)
		if s.woken() != 0 {
			t.Error("woken")
		}
	})
}
