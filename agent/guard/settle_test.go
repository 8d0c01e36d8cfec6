package guard

import (
	"os"
	"os/exec"
	"runtime/debug"
	"testing"
)

// collectionsWhenSettled makes this process a settled guard, has it read its word as often
// as in half a day, and returns how often the garbage collector ran meanwhile.
func collectionsWhenSettled() int64 {
	settle(func() {})
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	p := &page{}
	_ = p.order(post{})
	for range 2500 {
		_, _, _ = p.post()
	}
	debug.ReadGCStats(&after)
	return after.NumGC - before.NumGC
}

func TestAGuardThatOnlyWakesCollectsNoGarbage(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GUARD_TEST_SETTLED=yes")
	out, err := cmd.Output()
	if err != nil || string(out) != "0" {
		t.Errorf("%q collections, %v", out, err)
	}
}
