package danube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAnAssignmentThatAnybodyPutJustNowIsNotPutAgain(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, overlooks: true, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	b.settle = 400 * time.Millisecond
	loading := make(chan error, 1)
	go func() { loading <- b.Load(soon(t), "/default/a", nil) }()
	for f.count("TopicLookup") < 3 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(b.settle / 2)
	s.mu.Lock()
	s.put("/default/a") // the leader, or a handover
	s.overlooks = false
	s.mu.Unlock()
	theirs := time.Now()
	if err := <-loading; err != nil {
		t.Fatal(err)
	}
	if s.written() != 1 || s.at.Sub(theirs) < b.settle {
		t.Errorf("put %d times, %v after somebody else had", s.written(), s.at.Sub(theirs))
	}
}

func TestABrokerThatWasHaltedHasItsTimeToLoadFromThenOn(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	b.settle = 500 * time.Millisecond
	b.timeout = 5 * time.Second
	hold := make(chan struct{})
	var lookups atomic.Int64
	f.set(func() {
		f.answers["TopicLookup"] = func(context.Context) (any, error) {
			if lookups.Add(1) == 3 {
				<-hold
			}
			return nil, notFound
		}
	})
	loading := make(chan error, 1)
	go func() { loading <- b.Load(soon(t), "/default/a", nil) }()
	time.Sleep(prompt + b.settle)
	close(hold)
	resumed := time.Now()
	for s.written() == 0 && time.Since(resumed) < 5*time.Second {
		time.Sleep(time.Millisecond)
	}
	if after := s.at.Sub(resumed); after < b.settle {
		t.Errorf("put %v after the broker went on", after)
	}
	f.set(func() { delete(f.answers, "TopicLookup") })
	if err := <-loading; err != nil {
		t.Error(err)
	}
}

func TestNothingIsReleasedAtABrokerThatDoesNotAnswerJustNow(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	f.set(func() { f.places["/default/a"] = here })
	if _, err := b.Identify(soon(t)); err != nil {
		t.Fatal(err)
	}
	f.hangs("TopicLookup")
	err := bounded(t, "unload", func(ctx context.Context) error { return b.Unload(ctx, "/default/a") })
	if err == nil || !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), "--danube-lookup") {
		t.Error(err)
	}
	if s.released() != nil {
		t.Errorf("released %q", s.released())
	}
	f.set(func() { delete(f.answers, "TopicLookup") })
	if err := b.Unload(soon(t), "/default/a"); err != nil || len(s.released()) != 1 {
		t.Errorf("%v, released %q", err, s.released())
	}
}

func TestTopicsAreReleasedOneAfterTheOther(t *testing.T) {
	f := newFake(t)
	topics := []string{"/default/a", "/default/b", "/default/c"}
	s := &memory{f: f, slow: true, assigned: slices.Clone(topics)}
	b := f.etcd(t, s)
	f.set(func() {
		for _, topic := range topics {
			f.places[topic] = here
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, topic := range topics {
		wg.Go(func() {
			if err := b.Unload(ctx, topic); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", topic, err)
			}
		})
	}
	wg.Wait()
	first := s.released()
	if len(first) != 1 {
		t.Fatalf("released %q while the broker has unloaded none", first)
	}
	var next string
	for _, topic := range topics {
		if topic != first[0] {
			next = topic
		}
	}
	err := bounded(t, "unload", func(ctx context.Context) error { return b.Unload(ctx, next) })
	if len(s.released()) != 1 || err == nil || !strings.Contains(err.Error(), "nothing was written: "+first[0]+" comes first") {
		t.Errorf("released %q: %v", s.released(), err)
	}
	s.follow()
	for _, topic := range topics {
		if err := b.Unload(soon(t), topic); err != nil {
			t.Error(err)
		}
	}
	if len(s.released()) != 3 {
		t.Errorf("released %q", s.released())
	}
}

func TestARepeatedUnloadWaitsForTheBroker(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, slow: true, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	b.settle = 0
	f.set(func() { f.places["/default/a"] = here })
	for range 2 {
		err := bounded(t, "unload", func(ctx context.Context) error { return b.Unload(ctx, "/default/a") })
		if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "without being assigned") || !strings.Contains(err.Error(), "was told") {
			t.Error(err)
		}
	}
	time.AfterFunc(100*time.Millisecond, s.follow)
	if err := b.Unload(soon(t), "/default/a"); err != nil {
		t.Error(err)
	}
}

func TestATopicThatTheBrokerMayBeLoadingIsNotReleasedBeforeItHas(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	b.settle = time.Hour
	bounded(t, "unload", func(ctx context.Context) error { return b.Unload(ctx, "/default/a") })
	if s.released() != nil {
		t.Errorf("released %q", s.released())
	}
	f.set(func() { f.places["/default/a"] = here })
	if err := b.Unload(soon(t), "/default/a"); err != nil || len(s.released()) != 1 {
		t.Errorf("%v, released %q", err, s.released())
	}
}
