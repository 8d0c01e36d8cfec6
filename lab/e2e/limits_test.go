package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"slices"
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

// resident is how much memory a process has, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	must(t, err)
	var size, pages int64
	_, err = fmt.Sscan(string(b), &size, &pages)
	must(t, err)
	return pages * int64(os.Getpagesize())
}

func TestAnIdleSidecarWithAThousandTopicsStaysSmall(t *testing.T) {
	long(t)
	s := newStand(t)
	s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", topics(1000)...))
	c, err := s.lab.NewSidecar(harness.SidecarOptions{Broker: s.broker("n1"), Endpoints: []string{s.etcd.Endpoint()}})
	s.ok(err)
	s.ok(c.Start())
	_, err = c.Await(s.ctx, 5*bound, "all topics to be served", func(st harness.Status) bool { return st.Ready.OK && st.Topics.Served == 1000 })
	s.ok(err)
	// Not a wait for a state: being left alone for this long is what is measured. The heap goes
	// up and down between two collections, so one look says little: it is the median of many.
	s.ok(harness.Wait(s.ctx, 10*time.Second))
	var looks []int64
	for range 20 {
		s.ok(harness.Wait(s.ctx, 500*time.Millisecond))
		looks = append(looks, resident(t, c.PID()))
	}
	slices.Sort(looks)
	rss := looks[len(looks)/2]
	t.Logf("resident: %.1f MB after 10 s of idle (from %.1f to %.1f)", float64(rss)/1e6, float64(looks[0])/1e6, float64(looks[len(looks)-1])/1e6)
	if rss > maxResident {
		t.Errorf("%d bytes resident, want at most %d", rss, maxResident)
	}
}
