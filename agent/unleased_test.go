package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/agent/web"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// ownCluster is a host with a broker whose own cluster keeps its registration, and a sidecar
// without an etcd, in virtual time.
type ownCluster struct {
	t   *testing.T
	cfg config.Config

	mu        sync.Mutex
	born      time.Time // the host's boot
	suspended time.Duration
	moved     time.Duration // the wall clock
	stood     time.Duration // the sidecar, while the host ran
	boot      int

	process int       // which process of the broker there is
	up      bool      // it answers
	started time.Time // as the broker says; zero: it does not
	silent  bool      // it does not say when it started
	others  bool      // another one is active
	untold  bool      // it does not tell of others
	// whileAsked happens while it is; nil: nothing does.
	whileAsked func()

	servers map[string]http.Handler
	end     context.CancelCauseFunc
	ended   chan error
}

func (o *ownCluster) Probe(context.Context) (brokerapi.Report, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.up {
		return brokerapi.Report{}, errors.New("connection refused")
	}
	said := brokerapi.Report{Name: "n1", Instance: fmt.Sprintf("process-%d", o.process), StartedAt: o.started}
	if n := 0; !o.untold {
		if o.others {
			n = 1
		}
		said.Others = &n
	}
	if o.whileAsked != nil {
		o.mu.Unlock()
		o.whileAsked()
		o.mu.Lock()
	}
	return said, nil
}

func (o *ownCluster) Topics(context.Context) (brokerapi.Held, error) {
	return brokerapi.Held{}, nil
}
func (o *ownCluster) Serve(context.Context, string, []byte) error { return errors.New("not here") }
func (o *ownCluster) Withdraw(context.Context, string) error      { return errors.New("not here") }
func (o *ownCluster) Close() error                                { return nil }

func (o *ownCluster) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *ownCluster) clocks() lease.Clocks {
	o.mu.Lock()
	defer o.mu.Unlock()
	mono := time.Since(o.born) + o.stood
	return lease.Clocks{Boot: lease.Instant(mono + o.suspended), Mono: mono, Wall: time.Now().Add(o.suspended + o.moved + o.stood)}
}

// launch starts another process of the broker.
func (o *ownCluster) launch() {
	o.set(func() {
		o.process++
		o.up = true
		if o.started = time.Now().Add(o.suspended + o.moved + o.stood); o.silent {
			o.started = time.Time{}
		}
	})
}

func (o *ownCluster) crash() { o.set(func() { o.up = false }) }

// frozen has all clocks go on without the sidecar.
func (o *ownCluster) frozen(d time.Duration) { o.set(func() { o.stood += d }) }

// reboot ends everything and takes as long as it takes.
func (o *ownCluster) reboot(d time.Duration) {
	o.crash()
	o.stop(ErrKilled)
	time.Sleep(d)
	o.set(func() { o.boot++; o.born, o.suspended = time.Now().Add(-time.Second), 0 })
}

func (o *ownCluster) world() World {
	return World{
		Clock:  func() lease.Instant { return o.clocks().Boot },
		Clocks: o.clocks,
		BootID: func() string { o.mu.Lock(); defer o.mu.Unlock(); return fmt.Sprint("boot-", o.boot) },
		Broker: func(config.Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error) { return o, nil },
		Etcd: func(cluster.Config, *slog.Logger) (*cluster.Client, Line, error) {
			o.t.Error("an etcd was asked for")
			return nil, nil, errors.New("there is none")
		},
		Listen: func(l web.Listener) (web.Server, error) {
			o.set(func() { o.servers[l.Setting] = l.Handler })
			return &deafServer{closed: make(chan struct{})}, nil
		},
		Process: func(config.Config, *slog.Logger) *probes.Process { return nil },
	}
}

// deafServer listens to nobody: its handler is called.
type deafServer struct {
	once   sync.Once
	closed chan struct{}
}

func (s *deafServer) Addr() string { return "nowhere" }
func (s *deafServer) Serve() error { <-s.closed; return nil }
func (s *deafServer) Close() error { s.once.Do(func() { close(s.closed) }); return nil }

// start runs a sidecar and gives it ten seconds to see what there is.
func (o *ownCluster) start() {
	ctx, cancel := context.WithCancelCause(context.Background())
	o.end, o.ended = cancel, make(chan error, 1)
	go func() { o.ended <- Live(ctx, o.cfg, o.world(), slog.New(slog.DiscardHandler), "test") }()
	time.Sleep(10 * time.Second)
}

// stop ends the sidecar, if one runs; nil: as SIGTERM does.
func (o *ownCluster) stop(cause error) {
	if o.end == nil {
		return
	}
	o.end(cause)
	o.end = nil
	if err := <-o.ended; err != nil && !errors.Is(err, ErrKilled) {
		o.t.Errorf("the sidecar ended: %v", err)
	}
}

func (o *ownCluster) ask(setting, method, path, body string) *httptest.ResponseRecorder {
	o.mu.Lock()
	h := o.servers[setting]
	o.mu.Unlock()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
	return answer
}

func (o *ownCluster) status() (s control.Status) {
	if err := json.Unmarshal(o.ask("--control-socket", http.MethodGet, "/v1/status", "").Body.Bytes(), &s); err != nil {
		o.t.Error(err)
	}
	return s
}

func (o *ownCluster) ready() bool {
	return o.ask("--probe-listen", http.MethodGet, "/ready", "").Code == http.StatusOK
}

func (o *ownCluster) file(name string) string { return filepath.Join(o.cfg.StateDir, name) }

const others, alone = true, false

// company says whether the cluster has another broker that is active.
func (o *ownCluster) company(some bool) {
	o.set(func() { o.others = some })
}

// inOwnCluster runs claim with a broker that is up beside others, and no sidecar yet.
func inOwnCluster(t *testing.T, claim func(o *ownCluster)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := &ownCluster{t: t, cfg: natsDefaults(), born: time.Now().Add(-time.Hour), servers: map[string]http.Handler{}}
		o.cfg.Driver, o.cfg.Registration, o.cfg.StateDir = "danube", unleased, dir
		o.company(others)
		o.launch()
		claim(o)
		o.stop(nil)
	})
}

// want compares mode and reason, and that clients are let in exactly when it is active.
func (o *ownCluster) want(mode recovery.Mode, reason recovery.Reason) {
	o.t.Helper()
	s := o.status()
	if s.Mode != string(mode) || s.Reason != string(reason) {
		o.t.Errorf("%s (%s), want %s (%s): %s", s.Mode, s.Reason, mode, reason, s.Summary)
	}
	if o.ready() != (mode == recovery.Active) {
		o.t.Errorf("ready %t with mode %s: %v", o.ready(), s.Mode, s.Ready.Causes)
	}
}

func TestWithoutAnEtcdTheStartupTableHolds(t *testing.T) {
	const ttl = 32 * time.Second
	crashFor := func(d time.Duration) func(*ownCluster) {
		return func(o *ownCluster) { o.crash(); time.Sleep(d); o.launch(); time.Sleep(10 * time.Second) }
	}
	for _, c := range []struct {
		name   string
		then   func(o *ownCluster) // after a first boot that went well
		mode   recovery.Mode
		reason recovery.Reason
	}{
		{"first boot", func(*ownCluster) {}, recovery.Active, recovery.ReasonBoot},
		{"restart within the TTL", crashFor(ttl / 2), recovery.Active, recovery.ReasonFastRestart},
		{"restart past the TTL, others active", crashFor(2 * ttl), recovery.Drained, recovery.ReasonStaleRestart},
		{"restart past the TTL, no other active", func(o *ownCluster) { o.company(alone); crashFor(2 * ttl)(o) },
			recovery.Active, recovery.ReasonFullClusterRestart},
		{"the sidecar was stopped for long, the broker ran on", func(o *ownCluster) { o.stop(nil); time.Sleep(time.Hour); o.start() },
			recovery.Active, recovery.ReasonBoot},
		{"the sidecar was killed for long, the broker ran on", func(o *ownCluster) { o.stop(ErrKilled); time.Sleep(time.Hour); o.start() },
			recovery.Active, recovery.ReasonBoot},
		{"the broker restarted in time while no sidecar ran", func(o *ownCluster) {
			o.stop(nil)
			o.crash()
			time.Sleep(ttl / 2)
			o.launch()
			time.Sleep(time.Hour)
			o.start()
		}, recovery.Active, recovery.ReasonFastRestart},
		{"the broker restarted too late while no sidecar ran", func(o *ownCluster) {
			o.stop(nil)
			o.crash()
			time.Sleep(2 * ttl)
			o.launch()
			time.Sleep(time.Hour)
			o.start()
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"the broker restarted while no sidecar ran, and does not say when", func(o *ownCluster) {
			o.stop(nil)
			o.set(func() { o.silent = true })
			o.launch()
			time.Sleep(time.Hour)
			o.start()
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"both restarted at once, quickly", func(o *ownCluster) {
			o.crash()
			o.stop(nil)
			time.Sleep(ttl / 2)
			o.start()
			o.launch()
			time.Sleep(10 * time.Second)
		}, recovery.Active, recovery.ReasonFastRestart},
		{"the sidecar is back first and watches the broker being away", func(o *ownCluster) {
			o.crash()
			o.stop(nil)
			o.start()
			time.Sleep(2 * ttl)
			o.launch()
			time.Sleep(10 * time.Second)
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"host rebooted within the TTL", func(o *ownCluster) { o.reboot(ttl / 2); o.launch(); o.start() },
			recovery.Active, recovery.ReasonFastRestart},
		{"host rebooted past the TTL", func(o *ownCluster) { o.reboot(2 * ttl); o.launch(); o.start() },
			recovery.Drained, recovery.ReasonStaleRestart},
		{"host rebooted past the TTL, alone", func(o *ownCluster) { o.company(alone); o.reboot(2 * ttl); o.launch(); o.start() },
			recovery.Active, recovery.ReasonFullClusterRestart},
		{"host rebooted with a clock that went back", func(o *ownCluster) {
			o.reboot(ttl / 2)
			o.set(func() { o.moved = -24 * time.Hour })
			o.launch()
			o.start()
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"the wall clock was moved under a running sidecar", func(o *ownCluster) {
			o.set(func() { o.moved = 24 * time.Hour })
			crashFor(ttl / 2)(o)
		}, recovery.Active, recovery.ReasonFastRestart},
		{"the wall clock was moved back under a running sidecar", func(o *ownCluster) {
			o.set(func() { o.moved = -24 * time.Hour })
			crashFor(2 * ttl)(o)
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"the broker hung past the TTL, others active", func(o *ownCluster) {
			o.crash()
			time.Sleep(2 * ttl)
			o.set(func() { o.up = true })
			time.Sleep(10 * time.Second)
		}, recovery.Drained, recovery.ReasonRegistrationExpired},
		{"the broker hung past the TTL, no other active", func(o *ownCluster) {
			o.company(alone)
			o.crash()
			time.Sleep(2 * ttl)
			o.set(func() { o.up = true })
			time.Sleep(10 * time.Second)
		}, recovery.Active, recovery.ReasonFleetExpired},
		{"the host was suspended past the TTL", func(o *ownCluster) {
			o.set(func() { o.suspended += 2 * ttl })
			time.Sleep(20 * time.Second)
		}, recovery.Drained, recovery.ReasonRegistrationExpired},
		{"the broker hung past the TTL, and the sidecar was restarted then", func(o *ownCluster) {
			o.crash()
			time.Sleep(2 * ttl)
			o.stop(nil)
			o.set(func() { o.up = true })
			o.start()
		}, recovery.Drained, recovery.ReasonRegistrationExpired},
		{"the sidecar stood still for an hour, and the broker ran on", func(o *ownCluster) {
			o.frozen(time.Hour)
			time.Sleep(20 * time.Second)
		}, recovery.Active, recovery.ReasonBoot},
		{"the sidecar stood still for an hour, and the broker restarted in time", func(o *ownCluster) {
			o.frozen(time.Hour)
			o.launch()
			o.set(func() { o.started = o.started.Add(-time.Hour) })
			time.Sleep(20 * time.Second)
		}, recovery.Active, recovery.ReasonFastRestart},
		{"the sidecar stood still for an hour, and the broker restarted too late", func(o *ownCluster) {
			o.frozen(time.Hour)
			o.launch()
			o.set(func() { o.started = o.started.Add(-time.Minute) })
			time.Sleep(20 * time.Second)
		}, recovery.Drained, recovery.ReasonStaleRestart},
		{"an hour of nothing", func(*ownCluster) { time.Sleep(time.Hour) }, recovery.Active, recovery.ReasonBoot},
		{"a state file that is corrupt", func(o *ownCluster) {
			o.stop(nil)
			o.corrupt("state.json")
			o.start()
		}, recovery.Drained, recovery.ReasonCorruptState},
	} {
		t.Run(c.name, func(t *testing.T) {
			inOwnCluster(t, func(o *ownCluster) {
				o.start()
				o.want(recovery.Active, recovery.ReasonBoot)
				c.then(o)
				o.want(c.mode, c.reason)
			})
		})
	}
}

func (o *ownCluster) corrupt(name string) {
	if err := os.WriteFile(o.file(name), []byte(`{"format":`), 0o600); err != nil {
		o.t.Error(err)
	}
}

// What an earlier version kept in a file of its own, recorded from it, is taken up once.
func TestTheStoreOfAnEarlierVersionIsTakenUpOnce(t *testing.T) {
	for _, c := range []struct {
		name, store string // the state file says active, whatever the store does
		then        func(o *ownCluster)
		mode        recovery.Mode
		reason      recovery.Reason
	}{
		{"active", "active", func(*ownCluster) {}, recovery.Active, recovery.ReasonBoot},
		{"drained since", "drained", func(*ownCluster) {}, recovery.Drained, "disk swap"},
		{"drained since, and the state file is corrupt", "drained", func(o *ownCluster) { o.corrupt("state.json") }, recovery.Drained, "disk swap"},
		{"drained since, and the broker restarted", "drained", func(o *ownCluster) { o.launch() }, recovery.Drained, "disk swap"},
		{"away for too long by then", "away", func(*ownCluster) {}, recovery.Drained, recovery.ReasonRegistrationExpired},
		{"away for too long by then, and restarted", "away", func(o *ownCluster) { o.launch() }, recovery.Drained, recovery.ReasonStaleRestart},
		{"restarted within the TTL of its last renewal", "active", func(o *ownCluster) {
			o.set(func() { o.process, o.started = 2, o.born.Add(time.Hour+30*time.Second) })
		}, recovery.Active, recovery.ReasonFastRestart},
		{"not to be read", "active", func(o *ownCluster) { o.corrupt(formerStore) }, recovery.Drained, recovery.ReasonCorruptState},
		{"gone", "active", func(o *ownCluster) {
			if err := os.Remove(o.file(formerStore)); err != nil {
				o.t.Error(err)
			}
		}, recovery.Drained, recovery.ReasonCorruptState},
	} {
		t.Run(c.name, func(t *testing.T) {
			inOwnCluster(t, func(o *ownCluster) {
				for from, to := range map[string]string{"state.json": "state.json", "store." + c.store + ".json": formerStore} {
					raw, err := os.ReadFile(filepath.Join("testdata", "former_store", from))
					if err = errors.Join(err, os.WriteFile(o.file(to), raw, 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(90 * time.Second) // they were written in the first minute of virtual time
				c.then(o)
				o.start()
				o.want(c.mode, c.reason)
				if answer := o.ask("--control-socket", http.MethodPost, "/v1/activate", `{}`); answer.Code != http.StatusOK {
					t.Fatal(answer.Body)
				}
				o.stop(ErrKilled)
				o.start()
				o.want(recovery.Active, recovery.ReasonOperator)
			})
		})
	}
}

func TestWhetherOthersAreActiveIsNotGuessed(t *testing.T) {
	inOwnCluster(t, func(o *ownCluster) {
		o.start()
		o.crash()
		time.Sleep(time.Minute)
		o.set(func() { o.untold = true })
		o.launch()
		time.Sleep(time.Minute)
		s := o.status()
		if o.ready() || s.Mode != string(recovery.Active) || !strings.Contains(s.Summary, "does not tell") || !strings.Contains(s.Summary, "not decided") {
			t.Errorf("ready %t, %s (%s): %s", o.ready(), s.Mode, s.Reason, s.Summary)
		}
		o.set(func() { o.untold = false })
		time.Sleep(10 * time.Second)
		o.want(recovery.Drained, recovery.ReasonStaleRestart)
	})
}

func TestAnOperatorsDrainSurvivesEverythingWithoutAnEtcd(t *testing.T) {
	inOwnCluster(t, func(o *ownCluster) {
		o.start()
		if answer := o.ask("--control-socket", http.MethodPost, "/v1/drain", `{"reason":"disk swap","timeout_seconds":2}`); answer.Code != http.StatusOK {
			t.Fatal(answer.Body)
		}
		for _, c := range []struct {
			name string
			pass func()
		}{
			{"a restart of the sidecar", func() { o.stop(nil); o.start() }},
			{"a kill of the sidecar", func() { o.stop(ErrKilled); time.Sleep(time.Hour); o.start() }},
			{"a restart of the broker", func() { o.crash(); time.Sleep(time.Second); o.launch() }},
			{"a late restart of the broker", func() { o.crash(); time.Sleep(time.Hour); o.launch() }},
			{"a restart of everybody", func() { o.company(alone); o.reboot(time.Hour); o.launch(); o.start() }},
		} {
			c.pass()
			time.Sleep(10 * time.Second)
			if s := o.status(); s.Mode != string(recovery.Drained) || s.Reason != "disk swap" || o.ready() {
				t.Errorf("after %s: %s (%s), ready %t", c.name, s.Mode, s.Reason, o.ready())
			}
		}
		if answer := o.ask("--control-socket", http.MethodPost, "/v1/activate", `{}`); answer.Code != http.StatusOK {
			t.Fatal(answer.Body)
		}
		o.stop(ErrKilled)
		o.start()
		o.want(recovery.Active, recovery.ReasonOperator)
	})
}

func TestAnOperatorsWordWhileItIsDecidedStandsWithoutAnEtcd(t *testing.T) {
	for nth := 1; nth <= 8; nth++ { // of the probes, some of which a decision waits for
		inOwnCluster(t, func(o *ownCluster) {
			o.start()
			o.company(alone) // so that it would be active
			o.crash()
			time.Sleep(time.Minute)
			probes := 0
			o.whileAsked = func() {
				if probes++; probes != nth {
					return
				}
				if answer := o.ask("--control-socket", http.MethodPost, "/v1/drain", `{"reason":"disk swap","timeout_seconds":0.1}`); !strings.Contains(answer.Body.String(), "drained") {
					t.Error(answer.Body)
				}
			}
			o.launch()
			time.Sleep(20 * time.Second)
			o.want(recovery.Drained, "disk swap")
		})
	}
}

func TestStatusAndMetricsSayThatNoLeaseIsHeld(t *testing.T) {
	inOwnCluster(t, func(o *ownCluster) {
		o.start()
		s := o.status()
		if s.Lease != (control.LeaseStatus{}) || s.Registration.State != "none" || s.Guard.State != "off" || s.Attachment != "attached" {
			t.Errorf("%+v %+v %+v %s", s.Lease, s.Registration, s.Guard, s.Attachment)
		}
		page := o.ask("--web-listen", http.MethodGet, "/metrics", "").Body.String()
		for _, line := range []string{
			"holdfast_lease_ttl_seconds 0", "holdfast_lease_remaining_seconds 0", "holdfast_lease_deadline_timestamp_seconds 0",
			`holdfast_lease_renewals_total{result="confirmed"} 0`, "holdfast_lease_margin_seconds_count 0", "holdfast_ready 1",
			`holdfast_attachment{state="attached"} 1`, "holdfast_registration_present 1",
		} {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("no line %s", line)
			}
		}
		o.crash()
		time.Sleep(time.Hour)
		if s := o.status(); s.Attachment == recovery.Detached.String() || !strings.Contains(s.Summary, "away for longer than the TTL") {
			t.Errorf("%s: %s", s.Attachment, s.Summary)
		}
	})
}

func TestASidecarThatGetsAnEtcdForgetsItsOwnStore(t *testing.T) {
	for _, c := range []struct {
		name, was, is string
		past          bool
		changed       bool
	}{
		{"as before, with an etcd", "", "", true, false},
		{"as before, without", keptHere, keptHere, true, false},
		{"gets an etcd", keptHere, "", true, true},
		{"gets an etcd after an earlier version", unleased, "", true, true},
		{"loses its etcd", "", keptHere, true, true},
		{"new", "", keptHere, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := memory{Store: c.was, Past: registration.Past{FirstBootDone: c.past, Mode: "drained"}}
			if c.past {
				m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt = 7, 8, 9, 9
			}
			if m.keptIn(c.is); m.Store != c.is || (m.Revision == 0) != (c.changed || !c.past) || m.Mode != "drained" {
				t.Errorf("%+v", m)
			}
		})
	}
}

func TestSettingsThatNeedAnEtcdAreRefusedWithoutOne(t *testing.T) {
	for _, c := range []struct {
		name, setting, value string
		want                 string // empty: taken
	}{
		{"nothing else", "lease-ttl", "16s", ""},
		{"fence without stop", "fence", "ready,quiesce", ""},
		{"no detaching, which there is none of anyway", "detach", "false", ""},
		{"endpoints", "etcd-endpoints", "http://127.0.0.1:2379", `--etcd-endpoints "http://127.0.0.1:2379": not together with --registration "none", which has no etcd: leave one of the two out`},
		{"user", "etcd-user", "ann", `--etcd-user "ann": not together with --registration "none", which has no etcd: leave one of the two out`},
		{"prefix", "prefix", "/prod", `--prefix "/prod": not together with --registration "none", which has no etcd: leave one of the two out`},
		{"detaching", "detach", "true", `--detach=true: not together with --registration "none", which has no lease whose end could detach the broker: leave one of the two out`},
		{"guard", "guard", "on", `--guard "on": not together with --registration "none", which has no deadline that a guard could keep: leave one of the two out`},
		{"stop", "fence", "ready,quiesce,stop", `--fence "ready,quiesce,stop": not together with --registration "none", which has no fence point at which the broker could be stopped: leave one of the two out`},
		{"rendezvous", "assignment", "rendezvous", `--assignment "rendezvous": not together with --registration "none", where the broker's own cluster places the topics: leave one of the two out`},
		{"another driver", "driver", "nats", `--registration "none": not with a broker of this driver: its cluster does not keep its registration without Holdfast, or does not say who else is active: leave it out, and give --etcd-endpoints`},
		{"locks", "ownership-locks", "on", `--ownership-locks "on": not together with --registration "none", which has no etcd to hold them in: leave one of the two out`},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := map[string][]string{"driver": {"danube"}, "registration": {unleased}, "broker-process": {"broker"}, c.setting: {c.value}}
			cfg, err := config.Load(config.Sources{Flags: flags})
			if c.want == "" {
				if err != nil || cfg.Detach || cfg.Guard != "off" || strings.Contains(strings.Join(cfg.Fence, ","), "stop") {
					t.Errorf("%v; detach %t, guard %s, fence %s", err, cfg.Detach, cfg.Guard, cfg.Fence)
				}
				if err := cfg.Validate(); err != nil {
					t.Error("what was derived is refused:", err)
				}
				return
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	if _, err := config.Load(config.Sources{Flags: map[string][]string{"driver": {"nats"}, "registration": {unleased}},
		Env: []string{"HOLDFAST_ETCD_ENDPOINTS=http://127.0.0.1:2379"}}); err == nil || !strings.HasPrefix(err.Error(), "HOLDFAST_ETCD_ENDPOINTS ") {
		t.Errorf("from the environment: %v", err)
	}
}

func TestAShadowWithoutAnEtcdDecidesAndKeepsNothing(t *testing.T) {
	inOwnCluster(t, func(o *ownCluster) {
		o.cfg.Shadow = true
		o.start()
		o.crash()
		time.Sleep(time.Minute)
		o.launch()
		time.Sleep(10 * time.Second)
		if s := o.status(); s.Mode != string(recovery.Drained) || s.Reason != string(recovery.ReasonStaleRestart) || !s.Shadow {
			t.Errorf("%s (%s): %s", s.Mode, s.Reason, s.Summary)
		}
		if _, err := os.Stat(o.file(formerStore)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a store for a life that is real: %v", err)
		}
	})
}

func TestASecondSidecarLifeTakesNoMoreThanItsOwnFiles(t *testing.T) {
	inOwnCluster(t, func(o *ownCluster) {
		for range 5 {
			o.start()
			o.stop(nil)
		}
		entries, err := os.ReadDir(o.cfg.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); got != "journal.jsonl lock state.json" {
			t.Errorf("in the state directory: %s", got)
		}
	})
}
