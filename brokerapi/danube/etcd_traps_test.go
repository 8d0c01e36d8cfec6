package danube

import (
	"context"
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
	go func() { loading <- b.Serve(soon(t), "/default/a", nil) }()
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
	go func() { loading <- b.Serve(soon(t), "/default/a", nil) }()
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
