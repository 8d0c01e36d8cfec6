package registration

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// installed is a sidecar that is put beside a broker which has run for an hour, in a cluster
// with another.
func installed(t *testing.T, serving ...string) *outage {
	o := &outage{t: t, store: etcd.New(etcd.Config{})}
	o.client = cluster.Over(cluster.Config{}, o.store.Conn(nil), slog.New(slog.DiscardHandler))
	o.past = Life{Name: "n1", Past: Past{Incarnation: "mine"}, Instance: "process-1", Value: []byte(`{"incarnation":"mine"}`),
		Boot: recovery.BootFacts{OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "data", BrokerStartedAt: time.Now()}}
	o.begins(natsSettings(), lease.BootClock)
	o.Serves = answers(serving, nil)
	o.peer("n2")
	return o
}

func TestAFirstInstallationBesideRunningBrokersDrainsNobody(t *testing.T) {
	is := func(t *testing.T, o *outage, mode recovery.Mode, reason recovery.Reason) recovery.Decision {
		t.Helper()
		if _, err := o.Establish(t.Context(), 0, false); err != nil {
			t.Fatal(err)
		}
		d := o.outcomes[len(o.outcomes)-1].Decision
		if d.Mode.Mode != mode || d.Mode.Reason != reason {
			t.Errorf("%s: %s; want %s (%s)", d, d.Detail, mode, reason)
		}
		if s := o.snapshot().State; s == nil || s.Mode != string(mode) || s.Reason != string(reason) {
			t.Errorf("state in etcd is %+v", s)
		}
		return d
	}
	t.Run("nothing is assigned yet", func(t *testing.T) {
		is(t, installed(t, "/default/a"), recovery.Active, recovery.ReasonFirstRegistration)
	})
	t.Run("it serves what is its own", func(t *testing.T) {
		o := installed(t, "/default/a")
		o.assign("n1", "/default/a")
		is(t, o, recovery.Active, recovery.ReasonFirstRegistration)
	})
	t.Run("it serves what is another's", func(t *testing.T) {
		o := installed(t, "/default/a")
		o.assign("n2", "/default/a")
		if d := is(t, o, recovery.Drained, recovery.ReasonUnknownData); !strings.Contains(d.Detail, "/default/a (of n2)") {
			t.Errorf("%q does not name the topic", d.Detail)
		}
	})
	t.Run("what it serves is not known", func(t *testing.T) {
		o := installed(t)
		o.Serves = answers(nil, errors.New("timeout"))
		if _, err := o.Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) || !strings.Contains(err.Error(), "what the broker serves") {
			t.Errorf("%v, want to wait", err)
		}
		if o.snapshot().Registration != nil {
			t.Error("registered")
		}
	})
	inBubble(t, "a broker that takes long to list is asked once, and is not registered meanwhile", func(t *testing.T) {
		o, asked := installed(t), 0
		var ask func(context.Context)
		o.Beside = func(do func(context.Context)) { ask, asked = do, asked+1 }
		o.Serves = answers([]string{"/default/a"}, nil)
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := o.Establish(impatient, 0, false); !errors.Is(err, lease.ErrDeferred) || o.snapshot().Registration != nil {
			t.Errorf("%v, want to wait", err)
		}
		ask(t.Context())
		o.assign("n2", "/default/a")
		is(t, o, recovery.Drained, recovery.ReasonUnknownData)
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
	inBubble(t, "another process answers by now", func(t *testing.T) {
		o := installed(t)
		o.Serves, o.Beside = answers([]string{"/default/a"}, nil), func(func(context.Context)) {}
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, _ = o.Establish(impatient, 0, false)
		o.past.Instance, o.Serves, o.Beside = "process-2", answers(nil, nil), nil
		is(t, o, recovery.Active, recovery.ReasonFirstRegistration)
	})
	t.Run("with --join", func(t *testing.T) {
		o := installed(t)
		o.Config.Join = true
		o.Serves = unasked(t)
		is(t, o, recovery.Drained, recovery.ReasonJoin)
	})
	t.Run("a first boot serves nothing that is older than it", func(t *testing.T) {
		o := installed(t)
		o.past.Boot = recovery.BootFacts{}
		o.Serves = unasked(t)
		is(t, o, recovery.Active, recovery.ReasonBoot)
	})
	for name, known := range map[string]func(o *outage){
		"a member record": func(o *outage) { o.peer("n1"); o.unregister("n1") },
		"a state file":    func(o *outage) { o.past.Past.FirstBootDone = true },
		"a revision":      func(o *outage) { o.past.Past.Revision = 1 },
	} {
		inBubble(t, name+" says that it was registered", func(t *testing.T) {
			o := installed(t, "/default/a")
			known(o)
			o.Serves = unasked(t)
			is(t, o, recovery.Drained, recovery.ReasonStaleRestart)
		})
	}
}

func answers(serving []string, err error) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return serving, err }
}

func unasked(t *testing.T) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { t.Error("asked what it serves"); return nil, nil }
}

func (o *outage) assign(brokerID string, topics ...string) {
	o.t.Helper()
	kv := pb.NewKVClient(o.store.Conn(nil))
	for _, topic := range topics {
		if _, err := kv.Put(o.t.Context(), &pb.PutRequest{Key: []byte(o.client.Keys().Assignment(brokerID, topic)), Value: []byte("null")}); err != nil {
			o.t.Fatal(err)
		}
	}
}

// unregister ends a registration; the member record stays.
func (o *outage) unregister(id string) {
	o.t.Helper()
	seen, err := o.client.Snapshot(o.t.Context(), id)
	if err == nil {
		err = o.client.Revoke(o.t.Context(), seen.Registration.LeaseID)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// Nobody is registered in a pause that began while the broker was asked what it serves.
func TestAPauseThatBeginsDuringALookCounts(t *testing.T) {
	o := newOutage(t, "drain")
	o.lose()
	o.past = Life{Name: "n9", Past: Past{Incarnation: "nine"}, Instance: "process-9", Value: []byte(`{"incarnation":"nine"}`)}
	o.past.Boot = recovery.BootFacts{BrokerStartedAt: time.Now(), OldestMarker: time.Now().Add(-time.Hour), MarkerPath: "x"}
	o.Serves = func(context.Context) ([]string, error) { o.onPause = true; return []string{"/n/t"}, nil }
	if _, err := New(o.Deps).Establish(t.Context(), 0, false); !errors.Is(err, lease.ErrDeferred) {
		t.Errorf("not deferred: %v", err)
	}
	if seen, err := o.client.Snapshot(t.Context(), "n9"); err != nil || seen.Registration != nil || seen.State != nil {
		t.Errorf("registered: %+v, %v", seen, err)
	}
}
