// Package footprint keeps this process small: in memory, and in what it costs to wake.
// Guaranteed is nothing but that the program runs on: what was given back comes back when
// it is needed.
package footprint

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// gcPercent trades a little of the processor, of which an idle sidecar needs next
// to nothing, for memory, which it occupies beside every broker.
const gcPercent = 50

// PreferMemory has the garbage collector keep less, unless GOGC says otherwise.
func PreferMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// processors is how many goroutines run at the same time. A sidecar waits nearly always:
// with more, each event that wakes one thread wakes another, which finds nothing to do. It
// also ends the runtime's own look, once a second, at how many processors there are.
const processors = 1

// PreferSleep has as few threads woken as can be, unless GOMAXPROCS says otherwise.
func PreferSleep() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors)
	}
}

// Trim gives back what only the start needed: garbage, and the pages of
// the program itself that ran once. Most of an idle sidecar's resident memory is
// its own code; the kernel maps it in generous pieces around what is touched, and
// drops it by itself only under pressure. What is needed again comes back from the
// page cache. It is an optimisation: that it cannot be done changes nothing.
func Trim() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	whole := static()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		from, to, ok := programRange(lines.Text(), exe, whole)
		if ok {
			// Read-only pages of a file: dropping them loses nothing, see madvise(2).
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// static reports whether the program was linked by Go alone and to fixed addresses, as
// 'make build' does: then no loader has changed anything of it.
func static() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	got := map[string]string{}
	for _, s := range info.Settings {
		got[s.Key] = s.Value
	}
	return got["CGO_ENABLED"] == "0" && got["-buildmode"] == "exe"
}

// programRange reads a line of /proc/self/maps, such as
//
//	00400000-00c17000 r-xp 00000000 fe:00 1234    /usr/bin/holdfast
//
// and says whether it is the code of the program, or in a whole one its constants and
// tables, which are as large. Of what else is read-only than code, a loader may have
// changed pages before it protected them; of a whole program it has not.
func programRange(line, exe string, whole bool) (from, to uintptr, ok bool) {
	f := strings.Fields(line)
	if len(f) != 6 || f[5] != exe || f[1] != "r-xp" && !(whole && f[1] == "r--p") {
		return 0, 0, false
	}
	a, b, _ := strings.Cut(f[0], "-")
	start, err := strconv.ParseUint(a, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(b, 16, strconv.IntSize)
	return uintptr(start), uintptr(end), err == nil && err2 == nil && start < end
}
