package e2e

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// The limits that the sidecar promises to those who pay for its memory.
const (
	maxBinary   = 25_000_000 // bytes
	maxResident = 29_250_000 // bytes, idle with 1,000 topics
)

func TestTheBinaryIsStaticStrippedAndSmall(t *testing.T) {
	long(t) // what is shipped takes long to build
	path, err := harness.Build(harness.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MB", float64(info.Size())/1e6)
	if info.Size() > maxBinary {
		t.Errorf("%d bytes, want at most %d", info.Size(), maxBinary)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has %v: it is not static", p.Type)
		}
	}
	if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
		t.Error("it has symbols: it is not stripped")
	}
}

func topics(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("/default/topic-%05d", i)
	}
	return names
}

// memory reads a line such as VmRSS of a process's status, in bytes.
func memory(t *testing.T, pid int, what string) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, what+":"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb * 1024
		}
	}
	t.Fatalf("no %s in the status of process %d", what, pid)
	return 0
}

// loaded returns when a sidecar with many topics is ready. On a busy machine that takes
// its time; what must not be is that it gets on no more.
func (s *stand) loaded(c *harness.Sidecar) {
	s.Helper()
	for before := -1; ; {
		err := c.AwaitReady(s.ctx, bound)
		if err == nil {
			return
		}
		st, unknown := c.Status(s.ctx)
		s.ok(unknown)
		if st.Topics.Served <= before {
			s.ok(err)
		}
		before = st.Topics.Served
	}
}

// timeRenewals renews a lease of the test's own, from another process than the sidecar's,
// until the function that it returns is called; that one returns how long the slowest took.
func (s *stand) timeRenewals() (slowest func() time.Duration) {
	s.Helper()
	lease, err := s.etcd.Client().Grant(s.ctx, 600)
	s.ok(err)
	ctx, stop := context.WithCancel(s.ctx)
	longest := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for ctx.Err() == nil {
			began := time.Now()
			_, err := s.etcd.Client().KeepAliveOnce(ctx, lease.ID)
			if err == nil || ctx.Err() == nil {
				most = max(most, time.Since(began))
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		longest <- most
	}()
	s.Cleanup(stop)
	return func() time.Duration { stop(); return <-longest }
}

func TestAnIdleSidecarWithAThousandTopicsStaysSmall(t *testing.T) {
	long(t)
	s := newStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics(1000)...))
	c, err := s.lab.NewSidecar(harness.SidecarOptions{Broker: s.broker("n1"), Endpoints: []string{s.etcd.Endpoint()}})
	s.ok(err)
	s.ok(c.Start())
	s.loaded(c)
	st, err := c.Status(s.ctx)
	s.ok(err)
	if st.Topics.Served != 1000 {
		t.Fatalf("%d topics served, want 1000", st.Topics.Served)
	}
	after := memory(t, c.PID(), "VmRSS")
	// Not a wait for a state: being left alone for this long is what is measured. The heap goes
	// up and down between two collections, so one look says little: it is the median of many.
	var looks []int64
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-c.Exited():
			t.Fatal("the sidecar ended")
		}
		if time.Since(began) > 10*time.Second {
			looks = append(looks, memory(t, c.PID(), "VmRSS"))
		}
	}
	slices.Sort(looks)
	rss := looks[len(looks)/2]
	t.Logf("resident: %.1f MB after loading, %.1f MB after 10 s of idle (from %.1f to %.1f, anonymous %.1f, of the binary %.1f); peak %.1f MB",
		float64(after)/1e6, float64(rss)/1e6, float64(looks[0])/1e6, float64(looks[len(looks)-1])/1e6, float64(memory(t, c.PID(), "RssAnon"))/1e6,
		float64(memory(t, c.PID(), "RssFile"))/1e6, float64(memory(t, c.PID(), "VmHWM"))/1e6)
	if rss > maxResident {
		t.Errorf("%d bytes resident, want at most %d", rss, maxResident)
	}
}

func TestTenThousandTopicsAreLoadedBeforeReady(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	t.Parallel()
	const many = 10_000
	s := newStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics(many)...))
	c := s.beside(s.broker("n1"), "--lease-ttl", "16s") // a renewal may take two seconds, on a machine that is busy with ten thousand streams
	ownRenewals := s.timeRenewals()
	start := time.Now()
	c.run()
	s.loaded(c.Sidecar)
	took := time.Since(start)
	slowest := ownRenewals()
	st := c.await("the counts", func(st harness.Status) bool { return st.Topics.Assigned == many })
	if st.Topics.Served != many || st.Topics.Missing != 0 || st.Topics.Loading != 0 {
		t.Errorf("ready with %+v, want all %d served", st.Topics, many)
	}
	t.Logf("%d topics served after %v, %.0f topics/s; %.1f MB resident, peak %.1f MB", many, took.Round(time.Millisecond),
		many/took.Seconds(), float64(memory(t, c.PID(), "VmRSS"))/1e6, float64(memory(t, c.PID(), "VmHWM"))/1e6)
	c.renewsOn()
	c.stayedLive()
	// The claim is that no load of ours starves renewals. That etcd answers in time while
	// NATS makes ten thousand files on the same disk is none.
	failed := append(c.events("registration", "failing"), c.events("attachment", "degraded")...)
	silent := func(e harness.Event) bool { return e.Reason == "broker_down" }
	switch {
	case len(failed) == 0:
	case !slices.ContainsFunc(failed, func(e harness.Event) bool { return !silent(e) }):
		standstill.Check(t, fmt.Errorf("%w: NATS did not answer while it made its files: %+v", standstill.ErrUnjudged, failed))
	case slowest < time.Second:
		t.Errorf("renewals failed while the topics were loaded; the test's own took at most %v: %+v", slowest, failed)
	default:
		standstill.Check(t, fmt.Errorf("%w: renewals failed, and the test's own took up to %v, too", standstill.ErrUnjudged, slowest))
	}
}
