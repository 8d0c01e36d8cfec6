package footprint

import (
	"runtime"
	"testing"
)

func TestOnlyTheProgramsOwnCodeIsGivenBack(t *testing.T) {
	const exe = "/usr/bin/holdfast"
	for _, tt := range []struct {
		name, line string
		ok         bool
	}{
		{"code", "00400000-00c17000 r-xp 00000000 fe:00 1234                 /usr/bin/holdfast", true},
		{"constants, which a loader may have changed", "00c17000-0158d000 r--p 00817000 fe:00 1234 /usr/bin/holdfast", false},
		{"data", "0158d000-01611000 rw-p 0118d000 fe:00 1234                 /usr/bin/holdfast", false},
		{"code of another file", "7f0000000000-7f0000001000 r-xp 00000000 fe:00 99 /usr/lib/libc.so.6", false},
		{"a program that was replaced", "00400000-00c17000 r-xp 00000000 fe:00 1234 /usr/bin/holdfast (deleted)", false},
		{"the kernel's code", "7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0      [vdso]", false},
		{"heap", "c000000000-c000400000 rw-p 00000000 00:00 0", false},
		{"nonsense", "x-y r-xp 0 0 0 /usr/bin/holdfast", false},
		{"nothing", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from, to, ok := programRange(tt.line, exe, false)
			if ok != tt.ok || ok && (from != 0x400000 || to != 0xc17000) {
				t.Errorf("%x to %x, %v; want %v", from, to, ok, tt.ok)
			}
		})
	}
}

func TestOfAWholeProgramConstantsAreGivenBackTooAndDataIsNot(t *testing.T) {
	const exe = "/usr/bin/holdfast"
	for _, tt := range []struct {
		name, line string
		ok         bool
	}{
		{"code", "00400000-00c17000 r-xp 00000000 fe:00 1234 /usr/bin/holdfast", true},
		{"constants", "00c17000-0158d000 r--p 00817000 fe:00 1234 /usr/bin/holdfast", true},
		{"data", "0158d000-01611000 rw-p 0118d000 fe:00 1234 /usr/bin/holdfast", false},
		{"constants of another file", "00c17000-0158d000 r--p 00817000 fe:00 99 /usr/lib/libc.so.6", false},
	} {
		if _, _, ok := programRange(tt.line, exe, true); ok != tt.ok {
			t.Errorf("%s: %v; want %v", tt.name, ok, tt.ok)
		}
	}
}

func TestTheProgramRunsOnAfterItsCodeWasGivenBack(t *testing.T) {
	for range 3 {
		Trim()
	}
}

func TestFewProcessorsAreUsedUnlessTheEnvironmentSaysMore(t *testing.T) {
	before := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(before)
	t.Setenv("GOMAXPROCS", "3")
	PreferSleep()
	if n := runtime.GOMAXPROCS(0); n != 3 {
		t.Errorf("%d processors, GOMAXPROCS says 3", n)
	}
	t.Setenv("GOMAXPROCS", "")
	PreferSleep()
	if n := runtime.GOMAXPROCS(0); n != processors {
		t.Errorf("%d processors, want %d", n, processors)
	}
}
