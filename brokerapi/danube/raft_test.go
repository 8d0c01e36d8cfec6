package danube

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

func TestARaftBrokerIsHealthyOnceItIsAMember(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	if err := health(soon(t), b); err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.status = &danubepb.ClusterStatusResponse{SelfNodeId: 12345, Voters: []uint64{1, 2}} })
	if err := health(soon(t), b); err == nil || !strings.Contains(err.Error(), "no member of its Raft cluster yet") {
		t.Error(err)
	}
	f.set(func() { f.status.Learners = []uint64{12345} })
	if err := health(soon(t), b); err != nil {
		t.Errorf("as a learner: %v", err)
	}
	f.fails("TopicLookup", codes.Unavailable, "starting")
	if err := health(soon(t), b); err == nil || !strings.Contains(err.Error(), "--danube-lookup") {
		t.Error(err)
	}
}

func TestTheNodeIDIsTheNameAndEachStartAnInstance(t *testing.T) {
	for _, told := range []bool{true, false} {
		f := newFake(t)
		b := f.raft(t, nil)
		if told {
			f.set(func() { f.metrics += "process_start_time_seconds 1.7e9\n" })
		}
		first, err := b.Probe(soon(t))
		if err != nil || first.Name != fakeID || first.Version != raftVersion || first.StartedAt.IsZero() == told || (len(first.Notes) == 0) != told {
			t.Fatalf("%+v, %v", first, err)
		}
		f.set(func() { f.metrics = "" }) // what was found holds while the connection does
		if again, err := b.Probe(soon(t)); err != nil || !reflect.DeepEqual(again, first) {
			t.Errorf("%+v, then %+v, %v", first, again, err)
		}
		f.restart(t, b.admin)
		if told {
			f.set(func() { f.metrics = "process_start_time_seconds 1.7e9\n" })
			if err := health(soon(t), b); err != nil {
				t.Fatal(err)
			}
			if again, err := b.Probe(soon(t)); err != nil || again.Instance != first.Instance {
				t.Errorf("another connection to the same process: %+v, then %+v, %v", first, again, err)
			}
			f.restart(t, b.admin)
			f.set(func() { f.metrics = "process_start_time_seconds 1.8e9\n" })
		}
		if err := health(soon(t), b); err != nil {
			t.Fatal(err)
		}
		if second, err := b.Probe(soon(t)); err != nil || second.Instance == first.Instance || second.Name != first.Name {
			t.Errorf("%+v, then %+v, %v", first, second, err)
		}
	}
}

func TestADataDirectoryOfAnotherBrokerIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		fine    bool
	}{
		"its own": {fakeID + "\n", true}, "another's": {"777", false}, "not written yet": {"", true}, "not a number": {"garbage \x00", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dir := t.TempDir()
			if c.content != "" {
				if err := os.WriteFile(filepath.Join(dir, "node_id"), []byte(c.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := f.raft(t, func(cfg *Config) { cfg.DataDir = dir }).Probe(soon(t))
			if c.fine != (err == nil) || !c.fine && (!errors.Is(err, brokerapi.ErrIdentity) || !strings.Contains(err.Error(), "--data-dir "+dir+" belongs to broker 777")) {
				t.Error(err)
			}
		})
	}
}

func TestMetricsOfAnotherRaftBrokerAreRefused(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	f.set(func() { f.metrics = "up{broker=\"777\"} 1\n" })
	if _, err := b.Probe(soon(t)); !errors.Is(err, brokerapi.ErrIdentity) || !strings.Contains(err.Error(), "--danube-metrics") {
		t.Error(err)
	}
}

func TestSteeringEndsWhenTheBrokerIsWhatWasAskedFor(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	if err := b.SetMode(soon(t), brokerapi.Active, "it is"); err != nil || len(f.sent) != 0 {
		t.Errorf("%v, sent %v", err, f.sent)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	for range 2 {
		if err := b.SetMode(ctx, brokerapi.Drained, "stale_restart"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.SetMode(ctx, brokerapi.Active, "an operator's\nword"); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.sent) != 2 {
		t.Fatalf("sent %v", f.sent)
	}
	unload, activate := f.sent[0].(*danubepb.UnloadBrokerRequest), f.sent[1].(*danubepb.ActivateBrokerRequest)
	if unload.BrokerId != fakeID || unload.TimeoutSeconds < 5 || unload.TimeoutSeconds > 7 || unload.DryRun || unload.NamespacesInclude != nil {
		t.Errorf("unload %v", unload)
	}
	if activate.BrokerId != fakeID || activate.Reason != "an operator's\nword" {
		t.Errorf("activate %v", activate)
	}
	if err := b.SetMode(ctx, "paused", ""); err == nil {
		t.Error("an unknown mode")
	}
}

func TestADrainThatDoesNotEndSaysHowFarItCame(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer *danubepb.UnloadBrokerResponse
		err    codes.Code
		want   []string
	}{
		{"no second broker", nil, codes.FailedPrecondition, []string{"FailedPrecondition", "only to another active broker"}},
		{"some failed", &danubepb.UnloadBrokerResponse{Started: true, Total: 9, Succeeded: 2, Failed: 7,
			FailedTopics: []string{"/a/1", "/a/2", "/a/3", "/a/4", "/a/5", "/a/6", "/a/7"}}, 0, []string{"of 9 topics 2 are unloaded", "7 failed: [\"/a/1\""}},
		{"not started", &danubepb.UnloadBrokerResponse{}, 0, []string{"does not unload all its topics"}},
		{"pending", &danubepb.UnloadBrokerResponse{Started: true, Total: 3, Pending: 3}, 0, []string{"it is not drained yet", "3 pending", "deadline exceeded"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			b := f.raft(t, nil)
			if c.err != 0 {
				f.fails("UnloadBroker", c.err, "single broker cluster")
			} else {
				f.set(func() {
					f.answers["UnloadBroker"] = func(context.Context) (any, error) { return c.answer, nil }
				})
			}
			err := bounded(t, "drain", func(ctx context.Context) error { return b.SetMode(ctx, brokerapi.Drained, "") })
			for _, part := range c.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
		})
	}
}

func TestATopicIsSentToWhomTheClusterChooses(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	f.set(func() { f.places["/default/a"] = here })
	if _, err := b.Send(soon(t), "/default/a", brokerapi.Peer{ID: "2"}); !errors.Is(err, brokerapi.ErrRefused) || len(f.sent) != 0 {
		t.Errorf("to a broker that was named: %v, sent %v", err, f.sent)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if seen, err := b.Send(ctx, "/default/a", brokerapi.Peer{}); err == nil || !strings.Contains(err.Error(), "no broker has taken it") {
		t.Errorf("nobody has it: %q, %v", seen, err)
	}
	f.set(func() { f.places["/default/a"] = elsewhere })
	for range 2 { // it may be repeated
		if seen, err := b.Send(soon(t), "/default/a", brokerapi.Peer{}); err != nil || !strings.Contains(seen, "by the broker's own lookup") {
			t.Errorf("another broker has it: %q, %v", seen, err)
		}
	}
}

func TestARaftBrokerThatIsNotInItsListIsNotSteered(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	f.set(func() { f.brokers = []*danubepb.BrokerInfo{f.info("1")} })
	if err := b.SetMode(soon(t), brokerapi.Drained, ""); err == nil || !strings.Contains(err.Error(), "not in its own list") || len(f.sent) != 0 {
		t.Errorf("%v, sent %v", err, f.sent)
	}
}

func TestRaftTopicsAreListedUnloadedAndNotLoaded(t *testing.T) {
	f := newFake(t)
	b := f.raft(t, nil)
	f.set(func() {
		f.believed = []string{"/default/a", "/default/b"}
		f.places["/default/a"], f.places["/default/far"] = here, elsewhere
	})
	held, err := b.Topics(soon(t))
	if err != nil || !slices.Equal(held.Serving, []string{"/default/a"}) {
		t.Errorf("%+v, %v", held, err)
	}
	if err := b.Serve(soon(t), "/default/none", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	for range 2 {
		if err := b.Withdraw(soon(t), "/default/a"); err != nil {
			t.Error(err)
		}
	}
	if len(f.sent) != 1 {
		t.Errorf("sent %v", f.sent)
	}
	f.set(func() { f.places["/default/a"] = here })
	f.fails("UnloadTopic", codes.FailedPrecondition, "single broker")
	if err := b.Withdraw(soon(t), "/default/a"); err == nil || !strings.Contains(err.Error(), "only to another active broker") {
		t.Error(err)
	}
}
