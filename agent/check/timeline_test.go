package check

import (
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent/config"
)

func TestTimelineOfTheDefaults(t *testing.T) {
	var b strings.Builder
	tl := WorstCase(natsDefaults())
	if _, err := tl.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	const want = `When etcd goes away
        +0s  the last renewal that etcd confirms is sent
        +4s  next renewal; it fails: degraded, clients stay
     +4.75s  first retry, at the latest; then one at least every 750ms
   +21.333s  fence point: detached, not ready, topics quiesced
       +32s  deadline: etcd may delete the registration, others may take over
  cuts survived, starting at any moment: 16.333s without detaching, 27s without losing the registration
When the broker dies
        +0s  the broker dies, right after a good health check
        +4s  noticed by health checks, at the latest: not ready, renewals stop
       +36s  the registration is gone: its TTL has run out; its topics wait for it (failover hold)
  sooner, within 200ms, where its process or a held connection can be watched
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	if len(tl.Unsafe) != 0 {
		t.Errorf("unsafe: %q", tl.Unsafe)
	}
}

func TestTimelineOfALadderThatStopsTheProcess(t *testing.T) {
	lines := func(change func(*config.Config)) (list []string) {
		c := natsDefaults()
		c.BrokerPIDFile, c.LeaseTTL = "/run/broker.pid", 30*time.Second
		change(&c)
		for _, m := range WorstCase(c).Cut[3:] {
			list = append(list, config.FormatDuration(m.At)+" "+m.What)
		}
		return list
	}
	const deadline = "30s deadline: etcd may delete the registration, others may take over"
	for _, row := range []struct {
		name   string
		change func(*config.Config)
		want   []string
	}{
		{"by default", func(*config.Config) {}, []string{"20s fence point: detached, not ready, topics quiesced",
			"23.333s not proven to be quiesced by now: the broker's process is stopped",
			"26.667s the last step has ended; if this sidecar hangs, its guard stops the broker now", deadline}},
		{"ready,stop without a guard", func(c *config.Config) { c.Fence, c.Guard = []string{"ready", "stop"}, "off" }, []string{
			"20s fence point: detached, not ready, the broker's process is stopped", "26.667s the last step has ended", deadline}},
		{"ready,quiesce", func(c *config.Config) { c.Fence = []string{"ready", "quiesce"} }, []string{
			"20s fence point: detached, not ready, topics quiesced", deadline}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := lines(row.change); !slices.Equal(got, row.want) {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

func TestDefaultsSurviveTheCutsOfTheDesign(t *testing.T) {
	tl := WorstCase(natsDefaults())
	if tl.SurvivesDetach < 15*time.Second {
		t.Errorf("a 15 s cut at TTL 32 detaches: %v", tl.SurvivesDetach)
	}
	if tl.SurvivesExpiry < 25*time.Second {
		t.Errorf("a 25 s cut at TTL 32 loses the registration: %v", tl.SurvivesExpiry)
	}
}

func TestTimelineMomentsAreInOrder(t *testing.T) {
	for ttl := 3; ttl <= 60; ttl++ {
		c := natsDefaults()
		c.LeaseTTL = time.Duration(ttl) * time.Second
		for _, story := range [][]Moment{WorstCase(c).Cut, WorstCase(c).Crash} {
			for i := 1; i < len(story); i++ {
				if story[i].At < story[i-1].At {
					t.Errorf("TTL %ds: %q at %v comes after %q at %v", ttl, story[i].What, story[i].At, story[i-1].What, story[i-1].At)
				}
			}
		}
	}
}

func TestGraceLetsADeadBrokersRegistrationGoEarlier(t *testing.T) {
	c := natsDefaults()
	c.RestartGrace = 5 * time.Second
	crash := WorstCase(c).Crash
	if last := crash[len(crash)-1]; last.At != 9*time.Second || !strings.Contains(last.What, "grace") {
		t.Errorf("%v %s", last.At, last.What)
	}
}

func TestSlowHealthChecksPutOffOneAnother(t *testing.T) {
	c := natsDefaults()
	c.HealthTimeout = 3 * time.Second
	if got := WorstCase(c).Crash[1].At; got != 10*time.Second {
		t.Errorf("noticed after %v, want interval + 3 timeouts", got)
	}
}

func TestValidSettingsAlwaysSurviveSomeCut(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 8 * time.Second, 32 * time.Second, 10 * time.Minute} {
		for _, backoff := range []time.Duration{time.Millisecond, 250 * time.Millisecond, time.Minute} {
			c := natsDefaults()
			c.LeaseTTL, c.LeaseDetachMargin, c.BackoffInitial, c.BackoffMax = ttl, ttl/3, backoff, max(backoff, c.BackoffMax)
			c.RenewInterval = c.Timing().LongestRenewInterval()
			if cut := WorstCase(c).SurvivesDetach; cut <= 0 {
				t.Errorf("TTL %v, backoff from %v: with --renew-interval %v even a cut of %v detaches", ttl, backoff, c.RenewInterval, cut)
			}
		}
	}
}

func TestUnsafeTimingsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*config.Config)
		want string
	}{
		{"no detaching", func(c *config.Config) { c.Detach = false },
			"--detach=false: a broker that is cut off from etcd goes on serving after its registration is gone: leave it out"},
		{"health slower than the lease", func(c *config.Config) { c.HealthFall = 40 },
			"--health-fall 40: a dead broker is noticed after 41s, no sooner than --lease-ttl 32s: raise --lease-ttl, or lower --health-fall, --health-interval 1s or --health-timeout 1s"},
		{"a lease of the shortest kind", func(c *config.Config) { c.LeaseTTL = 3 * time.Second },
			"--health-fall 3: a dead broker is noticed after 4s, no sooner than --lease-ttl 3s: raise --lease-ttl, or lower --health-fall, --health-interval 1s or --health-timeout 1s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := natsDefaults()
			tt.set(&c)
			if err := c.Validate(); err != nil {
				t.Fatalf("not valid: %v", err)
			}
			got := WorstCase(c).Unsafe
			if len(got) != 1 || got[0] != tt.want {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}
