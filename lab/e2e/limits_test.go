package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
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
