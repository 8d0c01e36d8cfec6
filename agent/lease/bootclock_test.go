package lease

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On a host that was never suspended no two clocks differ. In a time namespace whose boot
// clock is an hour ahead they do, as after an hour of suspension.
func TestTheBootClockIsTheOneThatRunsOnWhileTheHostIsSuspended(t *testing.T) {
	const inside = "HOLDFAST_TEST_BOOT_CLOCK"
	if os.Getenv(inside) != "" {
		var mono unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ahead by", BootClock().Sub(Instant(mono.Nano())).Round(time.Second))
		return
	}
	c := exec.Command("unshare", "--time", "--boottime", "3600", os.Args[0], "-test.run", "^"+t.Name()+"$")
	c.Env = append(os.Environ(), inside+"=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Logf("no time namespace here, so the source is read: %v: %s", err, out)
		source, err := os.ReadFile("validity.go")
		if _, after, _ := strings.Cut(string(source), "func BootClock()"); err != nil || !strings.Contains(strings.SplitN(after, "\n}", 2)[0], "unix.ClockGettime(unix.CLOCK_BOOTTIME,") {
			t.Errorf("not CLOCK_BOOTTIME: %v", err)
		}
		return
	}
	// The host itself may have been suspended.
	var ahead time.Duration
	for line := range strings.Lines(string(out)) {
		if by, ok := strings.CutPrefix(strings.TrimSpace(line), "ahead by "); ok {
			if ahead, err = time.ParseDuration(by); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ahead < time.Hour {
		t.Errorf("ahead of the monotonic clock by %v after an hour of suspension:\n%s", ahead, out)
	}
}
