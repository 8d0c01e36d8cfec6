package guard

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// What keeps a guard small. It allocates next to nothing after its start, so the
// collector has nothing to do; the limit is for what was not foreseen. It leaves room for
// what the runtime itself needs: below that, the collector runs whenever the guard wakes.
const (
	processors  = 2 // one waits in poll, one runs the stop command
	memoryLimit = 16 << 20
)

// guardNice is the priority that is asked for: above everything that is not urgent.
const guardNice = -10

// settle makes the process small, and sees that it gets to run when the machine is
// full. rehearse touches what the guard will need. All of it is a try: refused, the guard
// works as any process does.
func settle(rehearse func()) {
	runtime.GOMAXPROCS(processors)
	debug.SetMemoryLimit(memoryLimit)
	_ = os.WriteFile("/proc/self/comm", []byte(pageName), 0) // it would be "exe"
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	// A priority is a thread's; later threads inherit it.
	if threads, err := os.ReadDir("/proc/self/task"); err == nil {
		for _, t := range threads {
			if tid, err := strconv.Atoi(t.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, tid, guardNice)
			}
		}
	}
	debug.FreeOSMemory()
	rehearse()
	// What is mapped later is not locked: under a limit the program could not map it at all.
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_ONFAULT)
}
