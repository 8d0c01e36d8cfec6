package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/recovery"
)

// endable is a broker that ends some time after it was asked to.
type endable struct {
	asked   int
	askedAt time.Time
	refuses error         // what End ends with
	takes   time.Duration // until the process ends
	hangs   bool          // it answers nothing
	late    bool          // End is answered too late
	next    string        // the process that answers after it; empty: none
}

func (b *endable) over() bool { return b.asked > 0 && time.Since(b.askedAt) >= b.takes }

func (b *endable) End(ctx context.Context) error {
	if b.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if b.refuses != nil {
		return b.refuses
	}
	b.asked++
	b.askedAt = time.Now()
	if b.late {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (b *endable) identify(context.Context) (brokerapi.Identity, error) {
	switch {
	case b.hangs:
		return brokerapi.Identity{}, context.DeadlineExceeded
	case b.over() && b.next == "":
		return brokerapi.Identity{}, errors.New("no answer")
	case b.over():
		return brokerapi.Identity{Instance: b.next}, nil
	}
	return brokerapi.Identity{Instance: "one"}, nil
}

func TestABrokerIsEndedByItsAdminAPI(t *testing.T) {
	never := 24 * time.Hour
	for _, row := range []struct {
		name    string
		b       endable
		unknown bool          // no broker has answered yet
		seen    bool          // its process is
		silent  bool          // connections are neither refused nor answered when it has ended
		closes  time.Duration // its ports, after it was asked; zero: never
		slow    bool          // to look for its process, and to connect before it is asked, takes for ever
		how     string
		err     string
		took    time.Duration // at most
	}{
		{name: "its process is seen to end", b: endable{takes: time.Second}, seen: true, how: "its admin API", took: 1100 * time.Millisecond},
		{name: "its process is seen to live on", b: endable{takes: never}, seen: true, took: 4 * time.Second,
			err: "the broker took the request to end and is not proven to have ended: context deadline exceeded"},
		{name: "its ports are closed and its process lives on", b: endable{takes: never}, seen: true, closes: time.Second, took: 1200 * time.Millisecond,
			how: "its admin API, and its process lives on with its ports closed"},
		{name: "it closes its ports before it answers", b: endable{takes: never, late: true}, seen: true, closes: time.Second, took: 2200 * time.Millisecond,
			how: "its admin API, and its process lives on with its ports closed"},
		{name: "connections are refused", b: endable{takes: time.Second}, how: "its admin API", took: 1100 * time.Millisecond},
		{name: "another process answers", b: endable{takes: time.Second, next: "two"}, how: "its admin API, and another process answers", took: 1100 * time.Millisecond},
		{name: "silence is no proof", b: endable{takes: time.Second}, silent: true, took: 4 * time.Second,
			err: "the broker took the request to end and is not proven to have ended: context deadline exceeded"},
		{name: "it hangs", b: endable{hangs: true}, took: 4 * time.Second,
			err: "the broker did not take the request to end: context deadline exceeded"},
		{name: "it refuses", b: endable{refuses: errors.New("401")}, took: 4 * time.Second, err: "the broker did not take the request to end: 401"},
		{name: "it had ended", b: endable{asked: 1, refuses: errors.New("connection refused")}, how: process.HowGone, took: 100 * time.Millisecond},
		{name: "the look at the processes of a busy host takes for ever", b: endable{takes: time.Second}, slow: true, how: "its admin API", took: 2200 * time.Millisecond},
		{name: "none was ever seen", unknown: true, err: "no broker process found: none has answered yet"},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := row.b
				known := "one"
				if row.unknown {
					known = ""
				}
				e := &ender{Ender: &b, identify: b.identify,
					known: func() brokerapi.Identity { return brokerapi.Identity{Instance: known} },
					holder: func(ctx context.Context) (process.Target, bool) {
						if row.slow {
							<-ctx.Done()
						}
						return process.Target{Pid: 7}, row.seen
					},
					gone:  func(process.Target) bool { return b.over() },
					ports: func(int) []uint16 { return []uint16{8080} },
					silent: func(_ int, ports []uint16) bool {
						return len(ports) == 1 && row.closes > 0 && b.asked > 0 && time.Since(b.askedAt) >= row.closes
					},
					refused: func(context.Context) bool { return b.over() && b.next == "" && !row.silent }}
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				began := time.Now()
				how, err := e.Stop(ctx)
				got := ""
				if err != nil {
					got = err.Error()
				}
				if how != row.how || got != row.err || time.Since(began) > row.took {
					t.Errorf("after %v: %q, %q; want %q, %q", time.Since(began), how, got, row.how, row.err)
				}
				if b.asked > 1 {
					t.Errorf("asked %d times", b.asked)
				}
			})
		})
	}
}

// The ladder asks the broker to end when it cannot be quiesced; nobody has a hand on its
// process.
func TestTheFenceEndsABrokerByItsAdminAPI(t *testing.T) {
	withDriver(t, "web", Driver{Admin: "http://127.0.0.1:1", Registration: "own", Failover: "hold", AdminSchemes: []string{"http", "https"}, Ends: func(Config) bool { return true }})
	stop := func(c *Config) { c.Driver, c.Fence = "web", []string{"ready", "quiesce", "stop"} }
	inLifeOf(t, brokerapi.Capabilities{End: true}, stop, nil, func(l *sidecarLife) {
		if l.guard != nil || l.cfg.Guard != "off" {
			t.Error("the guard cannot ask an admin API")
		}
		e, ok := l.stopper.(*ender)
		if !ok {
			t.Fatalf("%T", l.stopper)
		}
		e.holder = func(context.Context) (process.Target, bool) { return process.Target{}, false }
		e.refused = func(context.Context) bool { l.mu.Lock(); defer l.mu.Unlock(); return l.ended }
		l.set(func() { l.refuses, l.away = 100, true })
		l.becomes(recovery.Detached, time.Minute)
		l.until(l.age() + 10*time.Second)
		if got := l.why("fence"); got != "failed:quiesce stopped:" {
			t.Error(got)
		}
	})
}

func TestStopByTheAdminAPIIsAWayButNotForTheGuard(t *testing.T) {
	withDriver(t, "web", Driver{Admin: "http://127.0.0.1:1", Registration: "own", Failover: "hold", AdminSchemes: []string{"http", "https"}, Ends: func(Config) bool { return true }})
	for _, row := range []struct {
		name  string
		given map[string]string
		guard string
		want  string
	}{
		{"nothing said", nil, "off", ""},
		{"fence step stop", map[string]string{"fence": "ready,quiesce,stop"}, "off", ""},
		{"policy shutdown", map[string]string{"session-expired-policy": "shutdown"}, "off", ""},
		{"session retries", map[string]string{"session-expired-policy": "reconnect", "session-retries": "3"}, "off", ""},
		{"guard", map[string]string{"fence": "ready,quiesce,stop", "guard": "on"}, "on",
			`--guard "on": it speaks no admin API, so it needs another way to stop the broker: ` + waysToStop},
		{"guard with a hand on the process", map[string]string{"broker-process": "broker", "guard": "on"}, "on", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			src := Sources{Flags: map[string][]string{"driver": {"web"}}}
			for name, value := range row.given {
				src.Flags[name] = []string{value}
			}
			c, err := Load(src)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != row.want || c.Guard != row.guard {
				t.Errorf("guard %s, %q; want %s, %q", c.Guard, got, row.guard, row.want)
			}
		})
	}
}

func TestABrokerThatMustBeStoppedIsRefusedIfItCannotBe(t *testing.T) {
	must := brokerapi.Capabilities{MustStop: true}
	for _, row := range []struct {
		name   string
		can    brokerapi.Capabilities
		change func(*Config)
		want   string // begin of the refusal; empty: none
	}{
		{"it need not be stopped", brokerapi.Capabilities{}, func(*Config) {}, ""},
		{"no way", must, func(*Config) {}, "--broker-pid-file: not given, and no other way to stop the broker's process either: " + mustStopWhy + ": " + waysToStop},
		{"only its admin API", brokerapi.Capabilities{MustStop: true, End: true}, func(*Config) {}, "--broker-pid-file: not given"},
		{"by pid file", must, func(c *Config) { c.BrokerPIDFile = "/run/b.pid" }, ""},
		{"by name", must, func(c *Config) { c.BrokerProcess = "b" }, ""},
		{"by command", must, func(c *Config) { c.StopCommand = "systemctl stop b" }, ""},
		{"a child", must, func(c *Config) { c.Command = []string{"b"} }, ""},
		{"no step stop", must, func(c *Config) { c.BrokerProcess, c.Fence = "b", []string{"ready", "quiesce"} }, "--fence: without the step stop"},
		{"no detachment", must, func(c *Config) { c.BrokerProcess, c.Detach = "b", false }, "--detach=false: the broker would never be stopped"},
		{"no guard", must, func(c *Config) { c.BrokerProcess, c.Guard = "b", "off" }, "--guard off: nothing stops the broker's process if this sidecar hangs"},
		{"nothing is done in shadow", must, func(c *Config) { c.Shadow = true }, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := natsDefaults()
			row.change(&c)
			c = c.Effective()
			if got := unstoppable(c, row.can); (got == "") != (row.want == "") || !strings.HasPrefix(got, row.want) {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
			a := &agent{cfg: c, can: row.can, log: slog.New(slog.DiscardHandler)}
			err := a.refuseUnstoppable()
			f := checkMustStop(c, row.can)
			var exit *ExitError
			if refusal := errors.As(err, &exit) && exit.Code == ExitRefused; refusal != (row.want != "") || (f.Err != nil) != refusal {
				t.Errorf("run: %v, check: %v", err, f.Err)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "to run all the same: --i-know")) {
				t.Errorf("%v", err)
			}
			a.cfg.IKnow = true
			if err := a.refuseUnstoppable(); err != nil || (a.risk != "") != (row.want != "") {
				t.Errorf("with --i-know: %v, %q", err, a.risk)
			}
			if f := checkMustStop(a.cfg, row.can); f.Err != nil || f.Warn != (row.want != "") {
				t.Errorf("check with --i-know: %+v", f)
			}
		})
	}
}

func TestWhoKnowsTheRiskIsToldOfItInTheStatus(t *testing.T) {
	inLifeAfter(t, nil, func(l *sidecarLife) { l.risk = "--guard off: because" }, func(l *sidecarLife) {
		if s := l.status().Summary; s != "n1 serves 1 topic, but DANGER (--i-know): --guard off: because." {
			t.Error(s)
		}
	})
}
