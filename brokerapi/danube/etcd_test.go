package danube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

func TestAnOverlookedAssignmentIsPutAgainOnceForAllWhoAsk(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/a"}}
	b := f.etcd(t, s)
	start := time.Now()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := b.Serve(soon(t), "/default/a", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.written() != 1 {
		t.Errorf("put %d times", s.written())
	}
	if took := time.Since(start); took < b.settle {
		t.Errorf("put after %v: the broker may have been loading it", took)
	}
}

func TestLoadSaysWhyNot(t *testing.T) {
	for _, c := range []struct {
		name, topic, want string
		prepare           func(*fake, *memory)
		is                error
	}{
		{"elsewhere", "/default/b", "served by another broker", func(f *fake, _ *memory) { f.places["/default/b"] = elsewhere }, brokerapi.ErrElsewhere},
		{"not assigned", "/default/b", "not assigned to broker " + fakeID, nil, nil},
		{"no topic", "a", "want the form /namespace/topic", nil, nil},
		{"etcd away", "/default/a", "etcd is away", func(_ *fake, s *memory) { s.err = errors.New("etcd is away") }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			s := &memory{f: f, assigned: []string{"/default/a"}}
			b := f.etcd(t, s)
			if c.prepare != nil {
				f.set(func() { c.prepare(f, s) })
			}
			err := b.Serve(soon(t), c.topic, nil)
			if err == nil || !strings.HasPrefix(err.Error(), "load") || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if s.written() != 0 {
				t.Errorf("put %q", s.puts)
			}
		})
	}
}

func TestALookupThatLeavesItOpenIsAnErrorAndPutsNothing(t *testing.T) {
	for name, answer := range map[string]*danubepb.TopicLookupResponse{
		"empty":                {},
		"failed":               {ResponseType: danubepb.TopicLookupResponse_Failed},
		"unknown kind":         {ResponseType: 77, BrokerUrl: "http://10.0.0.1:6650"},
		"redirect to nobody":   {ResponseType: danubepb.TopicLookupResponse_Redirect},
		"of another's request": {ResponseType: danubepb.TopicLookupResponse_Connect, RequestId: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			s := &memory{f: f, assigned: []string{"/default/a"}}
			b := f.etcd(t, s)
			b.settle = 0
			f.set(func() {
				f.answers["TopicLookup"] = func(context.Context) (any, error) { return answer, nil }
			})
			if err := b.Serve(soon(t), "/default/a", nil); err == nil || !strings.Contains(err.Error(), "--danube-lookup") {
				t.Error(err)
			}
			if s.written() != 0 {
				t.Errorf("put %q", s.puts)
			}
		})
	}
}

func TestTopicsAreThoseThatAreLoaded(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/a", "/default/b", "/default/c", "/default/\xff"}}
	b := f.etcd(t, s)
	f.set(func() {
		f.places = map[string]place{"/default/a": here, "/default/c": elsewhere, "/default/d": here, "/default/e": here}
		f.believed = []string{"/default/a", "/default/d", "no topic", "/too/many/parts"}
	})
	held, err := b.Topics(soon(t))
	if err != nil || !slices.Equal(held.Serving, []string{"/default/a", "/default/d"}) || held.Withdrawn != nil ||
		!slices.Equal(held.Unreadable, []string{`"/too/many/parts"`, `"no topic"`}) {
		t.Errorf("%+v, %v", held, err)
	}
	f.fails("TopicLookup", codes.Unavailable, "not now")
	if held, err := b.Topics(soon(t)); err == nil {
		t.Errorf("an error is no absence: %+v", held)
	}
}

func TestTheMetricsNameTheBrokerAndEtcdIsNotAsked(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, err: errors.New("etcd is away")}
	b := f.etcd(t, s)
	for range 3 {
		who, err := b.Probe(soon(t))
		if err != nil || who.Instance != fakeID || who.Name != "" || who.Version != etcdVersion || who.DataDir != "" || !who.StartedAt.IsZero() {
			t.Fatalf("%+v, %v", who, err)
		}
	}
	// What was found holds while the connection does.
	f.set(func() { f.metrics, f.brokers = "", nil })
	if who, err := b.Probe(soon(t)); err != nil || who.Instance != fakeID {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestABrokerIsHealthyWhileEtcdHangsAndItsMetricsAreSilent(t *testing.T) {
	f := newFake(t)
	b := f.etcd(t, &memory{f: f})
	if err := health(soon(t), b); err != nil {
		t.Fatal(err)
	}
	f.set(func() {
		f.metrics = ""
		f.answers["ListBrokers"] = func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		start := time.Now()
		if err := health(ctx, b); err != nil || ctx.Err() != nil {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		cancel()
	}
}

func TestAStrangerIsToldWithTheRemedy(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*fake)
		want    []string
	}{
		{"a broker with Raft", func(f *fake) { f.status = &danubepb.ClusterStatusResponse{SelfNodeId: 1} },
			[]string{"--broker-admin", "with Raft", "set --registration to own or none"}},
		{"no admin API", func(f *fake) {
			f.answers["ListBrokerTopics"] = func(context.Context) (any, error) { return nil, status.Error(codes.Unimplemented, "unknown service") }
		}, []string{"--broker-admin", "set --broker-admin to port 50051 of the broker"}},
		{"metrics of something else", func(f *fake) { f.metrics = "up{broker=\"kafka-1\"} 1\n" },
			[]string{"--danube-metrics", `"kafka-1"`, "9040"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			b := f.etcd(t, &memory{f: f})
			f.set(func() { c.prepare(f) })
			_, err := b.Probe(soon(t))
			if !errors.Is(err, brokerapi.ErrIdentity) {
				t.Fatal(err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

// An owner that is found by a part of the topic's name is none.
func TestWhatIsAssignedIsNotElsewhereWhateverTheLookupSays(t *testing.T) {
	f := newFake(t)
	s := &memory{f: f, assigned: []string{"/default/t1"}}
	b := f.etcd(t, s)
	b.settle = 0
	f.set(func() { f.places["/default/t1"], f.places["/default/t2"] = elsewhere, elsewhere })
	if err := b.Serve(soon(t), "/default/t1", nil); err != nil || s.written() != 1 {
		t.Errorf("put %q, %v", s.puts, err)
	}
	if err := b.Serve(soon(t), "/default/t2", nil); !errors.Is(err, brokerapi.ErrElsewhere) {
		t.Errorf("not assigned, and elsewhere: %v", err)
	}
}

func TestAViewIsStaleWhenOneTopicDiffersForLong(t *testing.T) {
	b := &etcdBroker{}
	at := func(seconds int, assigned, believed []string, stale bool) {
		t.Helper()
		b.compare("7", assigned, believed, time.Unix(int64(seconds), 0))
		if (b.stale != "") != stale {
			t.Errorf("after %d s: %q", seconds, b.stale)
		}
	}
	at(0, []string{"/n/a", "/n/b"}, []string{"/n/a"}, false)
	at(10, []string{"/n/a", "/n/c"}, []string{"/n/a"}, false) // another one
	at(20, []string{"/n/a", "/n/c"}, []string{"/n/a"}, false)
	at(21, []string{"/n/a", "/n/c"}, []string{"/n/a"}, true)
	at(22, []string{"/n/a"}, []string{"/n/a", "/n/x"}, false)
	at(33, nil, []string{"/n/a", "/n/x"}, true)
	b.compare("8", nil, []string{"/n/a"}, time.Unix(40, 0))
	if b.stale != "" {
		t.Error("of a process that has gone")
	}
}

// health is what the broker is asked for each second.
func health(ctx context.Context, b brokerapi.Broker) error {
	_, err := b.Probe(ctx)
	return err
}
