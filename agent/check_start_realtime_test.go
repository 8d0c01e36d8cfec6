package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/brokerapi"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// foretells is what check says of the start that o's sidecar is about to make.
func (o *outage) foretells() check.Finding {
	o.t.Helper()
	past, m := o.past, o.past.memory
	m.Mode, m.Reason, m.By = string(past.mode.Mode), string(past.mode.Reason), past.mode.By
	s := start{cfg: o.cfg, name: "n1", memory: m, instance: past.instance, boot: past.boot, data: past.data, serves: o.serves, moved: o.moved, clock: o.clock}
	revision, leases := o.holds()
	var renewals sync.WaitGroup
	ctx, cancel := context.WithCancel(o.t.Context())
	renewals.Go(func() {
		for each := time.NewTicker(time.Second); ; {
			select {
			case <-each.C:
				o.renewPeers()
			case <-ctx.Done():
				return
			}
		}
	})
	f := s.foretell(ctx, o.client, slog.New(slog.DiscardHandler))
	cancel()
	renewals.Wait()
	if r, n := o.holds(); r != revision || n != leases {
		o.t.Errorf("revision %d and %d leases, before %d and %d: something was written", r, n, revision, leases)
	}
	return f
}

func TestAStartBesideAProcessThatHasLeftIsForetold(t *testing.T) {
	for _, row := range []struct {
		instance string
		ago      time.Duration
		waits    bool
	}{{"process-1", time.Minute, true}, {"process-1", time.Hour, false}, {"process-2", time.Minute, false}} {
		o := newOutage(t, "drain")
		o.leave()
		o.lose()
		o.stood = false
		o.backAs(func(m *memory) {
			m.LeaseID, m.Released, m.Left = 0, true, &leftProcess{Instance: "process-1", At: time.Now().Add(-row.ago)}
		})
		o.past.instance = row.instance
		f := o.foretells()
		if waits := f.Warn && strings.Contains(f.Text, "registered again if it still runs in 4m0s"); f.Err != nil || waits != row.waits ||
			!waits && !strings.Contains(f.Text, string(recovery.ReasonPlannedRestart)) {
			t.Errorf("%+v: %+v", row, f)
		}
	}
}

// Which it is, is seen by the lease within the time between two looks.
func TestAStartWithAStateDirectoryThatWasCopiedOrMovedIsForetold(t *testing.T) {
	for _, row := range []struct {
		name   string
		moved  bool
		alive  bool // the other sidecar renews
		leader bool // changes between the looks, which tells nothing
		want   string
		warn   bool
		within time.Duration
	}{
		{"a copy of one that lives", true, true, false, "would wait, detached, decided by identity_conflict: broker id \"n1\" is registered by a living sidecar of the same incarnation", true, time.Second},
		{"moved", true, false, false, "would be active (fast_restart)", false, time.Second},
		{"a new leader", true, true, true, "would wait: the state directory is not where it was", true, time.Second},
		{"where it was", false, true, false, "would be active (fast_restart)", false, -time.Second},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			born := time.Now()
			o.clock = func() lease.Instant { return lease.Instant(time.Since(born)) }
			apart := recovery.LooksApart(o.cfg.RenewInterval)
			o.past.value, o.run, o.stood = valueOfRun("before"), "before", false
			o.establish(o.first.LeaseID)
			o.moved, o.stood, o.past.instance = row.moved, false, "process-2"
			ctx, end := context.WithCancel(t.Context())
			var other sync.WaitGroup
			other.Go(func() {
				for ctx.Err() == nil {
					select {
					case <-time.After(o.cfg.RenewInterval):
					case <-ctx.Done():
					}
					if row.alive && ctx.Err() == nil {
						o.renew()
					}
					if row.leader && time.Since(born) > apart/2 {
						o.store.ChangeLeader(0)
					}
				}
			})
			began := time.Now()
			f := o.foretells()
			took := time.Since(began)
			end()
			other.Wait()
			if f.Err != nil || f.Warn != row.warn || !strings.HasPrefix(f.Text, row.want) {
				t.Errorf("%+v", f)
			}
			if took > apart+row.within || row.within > 0 && took < apart {
				t.Errorf("it took %v, with %v between two looks", took, apart)
			}
		})
	}
}

func TestWhatIsForetoldOfAStartIsWhatItDecides(t *testing.T) {
	restarted := func(o *outage) { o.past.instance = "process-2" }
	for _, row := range []struct {
		name   string
		outage func(t *testing.T) *outage
		change func(o *outage)
		want   recovery.Reason // the row
		warn   bool
	}{
		{"back within the TTL", nil, restarted, recovery.ReasonFastRestart, false},
		{"back after the TTL, others lived on", nil, func(o *outage) { restarted(o); o.lose() }, recovery.ReasonStaleRestart, true},
		{"back after the TTL, alone", nil, func(o *outage) { restarted(o); o.lose(); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart, false},
		{"the same process, registered", nil, func(*outage) {}, recovery.RowSurvived, false},
		{"the same process, its registration lost", nil, func(o *outage) { o.lose() }, recovery.ReasonRegistrationExpired, true},
		{"the same process, everybody's lost", nil, func(o *outage) { o.lose(); o.everybodyElseGoes() }, recovery.ReasonFleetExpired, false},
		{"policy reconnect", nil, func(o *outage) { o.cfg.SessionExpiredPolicy = "reconnect"; o.lose() }, recovery.RowReconnected, false},
		{"policy shutdown", nil, func(o *outage) { o.cfg.SessionExpiredPolicy = "shutdown"; o.lose() }, recovery.ReasonSessionExpired, true},
		{"drained by an operator", nil, func(o *outage) {
			restarted(o)
			o.past.mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
			if _, err := o.client.PutState(o.t.Context(), "n1", *stateWrite(o.past.mode), o.snapshot().StateRevision); err != nil {
				o.t.Fatal(err)
			}
		}, recovery.RowKept, false},
		{"a state file that cannot be read", nil, func(o *outage) { restarted(o); o.past.memory.Distrust = "torn" }, recovery.ReasonCorruptState, true},
		{"a restored backup", nil, func(o *outage) { restarted(o); o.past.memory.Revision = 1 << 40 }, recovery.ReasonRestoredBackup, true},
		{"another disk, empty", nil, func(o *outage) {
			restarted(o)
			o.past.memory.Data, o.past.data = dataBefore, dataAnother
		}, recovery.ReasonDataMissing, true},
		{"another incarnation is registered", nil, func(o *outage) { restarted(o); o.past.memory.Incarnation = "another" }, recovery.RowConflict, true},
		{"never registered", func(t *testing.T) *outage { return installed(t, "/default/a") }, func(*outage) {}, recovery.ReasonFirstRegistration, false},
		{"never registered, with what is another's", func(t *testing.T) *outage { return installed(t, "/default/a") },
			func(o *outage) { o.assign("n2", "/default/a") }, recovery.ReasonUnknownData, true},
		{"to join", func(t *testing.T) *outage { return installed(t) }, func(o *outage) { o.cfg.Join = true }, recovery.ReasonJoin, true},
		{"the first boot", func(t *testing.T) *outage { return installed(t) }, func(o *outage) { o.past.boot = recovery.BootFacts{} }, recovery.ReasonBoot, false},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := (*outage)(nil)
			if row.outage != nil {
				o = row.outage(t)
			} else {
				o = newOutage(t, "drain")
			}
			o.stood = false // another process starts
			row.change(o)
			f := o.foretells()
			if f.Err != nil || f.Warn != row.warn || !strings.Contains(f.Text, ", decided by "+string(row.want)+": ") || !strings.Contains(f.Text, "; otherwise: "+recovery.Otherwise(row.want)) {
				t.Errorf("foretold %+v, want %s", f, row.want)
			}
			_, err := o.Establish(t.Context(), 0, false)
			switch {
			case errors.Is(err, lease.ErrConflict):
				if row.want != recovery.RowConflict {
					t.Errorf("decided %v", err)
				}
			case errors.Is(err, lease.ErrShutdown):
				if row.want != recovery.ReasonSessionExpired {
					t.Errorf("decided %v", err)
				}
			case err != nil:
				t.Error(err)
			default:
				if d := o.outcomes[len(o.outcomes)-1].decision; d.Row != row.want {
					t.Errorf("decided %s by %s", d, d.Row)
				}
			}
		})
	}
}

func TestWhatAStartWouldWaitForIsForetold(t *testing.T) {
	inBubble(t, "the end of a pause", func(t *testing.T) {
		o := newOutage(t, "drain")
		o.past.instance = "process-2"
		o.lose()
		o.past.memory.Pause = &recovery.Pause{Owner: "ops", Until: time.Now().Add(time.Hour)}
		if f := o.foretells(); !f.Warn || !strings.HasPrefix(f.Text, "would wait: recovery is paused") {
			t.Errorf("%+v", f)
		}
		o.past.memory.Pause.Until = time.Now().Add(-time.Second)
		if f := o.foretells(); !strings.Contains(f.Text, "decided by stale_restart") {
			t.Errorf("once it is over: %+v", f)
		}
	})
	t.Run("the broker's list of topics", func(t *testing.T) {
		o := installed(t)
		o.serves = answers(nil, errors.New("timeout"))
		if f := o.foretells(); !f.Warn || !strings.HasPrefix(f.Text, "would wait: what the broker serves is not known") {
			t.Errorf("%+v", f)
		}
	})
}

func TestWhatABrokerThatIsDownCannotTellIsAssumed(t *testing.T) {
	etcd := serveSomeEtcd(t)
	settings := func() config.Config {
		c := natsDefaults()
		c.EtcdEndpoints, c.StateDir, c.DataDir = []string{etcd}, t.TempDir(), t.TempDir()
		return c.Effective()
	}
	check := func(c config.Config) check.Finding {
		t.Helper()
		f := checkStart(t.Context(), c, brokerapi.Report{}, false, slog.New(slog.DiscardHandler))
		if f.Err != nil {
			t.Error(f.Err)
		}
		return f
	}
	c := settings()
	if f := check(c); !strings.Contains(f.Text, "its id is not known: give --broker-id") {
		t.Errorf("nobody knows its id: %+v", f)
	}
	c.BrokerID = "n1"
	if f := check(c); !strings.Contains(f.Text, "would be active (boot)") || !strings.HasSuffix(f.Text, " Assumed: the broker does not answer, and is started now") {
		t.Errorf("without data: %+v", f)
	}
	mark := filepath.Join(c.DataDir, strings.ReplaceAll(c.DataMarkers[0], "*", "x"))
	if err := os.MkdirAll(filepath.Dir(mark), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := check(c); !strings.Contains(f.Text, "(first_registration)") || !strings.HasSuffix(f.Text, "; it serves nothing that is assigned to others") {
		t.Errorf("with data: %+v", f)
	}
	torn := filepath.Join(c.StateDir, "state.json")
	if err := os.WriteFile(torn, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := check(c); !f.Warn || !strings.Contains(f.Text, "drained (corrupt_state)") {
		t.Errorf("a torn state file: %+v", f)
	}
	if raw, err := os.ReadFile(torn); err != nil || string(raw) != "{" {
		t.Errorf("the state file is not as it was: %q, %v", raw, err)
	}
	c.DataDir = ""
	if f := check(c); !strings.Contains(f.Text, "it has no older data, because --data-dir is not given") {
		t.Errorf("no data directory: %+v", f)
	}
}

func TestWhatASidecarHoldsThatRunsIsToldInsteadOfAStart(t *testing.T) {
	c := natsDefaults()
	c.StateDir = t.TempDir()
	c = c.Effective()
	listener, err := net.Listen("unix", c.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"broker_id":"n1","mode":"drained","reason":"stale_restart","decided":{"row":"stale_restart","why":"others lived on","otherwise":"Back sooner."}}`))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(listener) }()
	t.Cleanup(func() { srv.Close(); <-done })
	f := checkStart(t.Context(), c, brokerapi.Report{}, false, slog.New(slog.DiscardHandler))
	const want = "a sidecar runs: n1 is drained (stale_restart), decided by stale_restart: others lived on; otherwise: Back sooner."
	if f.Err != nil || f.Text != want {
		t.Errorf("%v\ngot  %s\nwant %s", f.Err, f.Text, want)
	}
}

// serveSomeEtcd puts an etcd behind a socket until the test ends.
func serveSomeEtcd(t *testing.T) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	services := grpc.NewServer()
	etcd.New(etcd.Config{}).Register(services)
	var serving sync.WaitGroup
	serving.Go(func() { _ = services.Serve(listener) })
	t.Cleanup(func() { services.Stop(); serving.Wait() })
	return "http://" + listener.Addr().String()
}
