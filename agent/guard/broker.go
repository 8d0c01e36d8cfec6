package guard

import (
	"flag"
	"fmt"
	"hash/fnv"
	"strconv"

	"holdfast/agent/process"
)

// Broker says what the broker's process is and how it is stopped, in words that can be
// handed to another process. The zero Broker cannot be stopped.
type Broker struct {
	PIDFile, Name string
	StopCommand   string
	Child         bool // the target leads a process group that is the broker's own
}

// commandVar hands the stop command on. Everybody on the host can read a process's
// arguments, only its own user its environment; what is in a private file of settings
// must stay there.
const commandVar = "HOLDFAST_GUARD_STOP_COMMAND"

// flags are how a guard is told, but for the stop command.
func (b *Broker) flags(set *flag.FlagSet) {
	set.StringVar(&b.PIDFile, "pid-file", "", "")
	set.StringVar(&b.Name, "process", "", "")
	set.BoolVar(&b.Child, "child", false, "")
}

// args are what flags reads.
func (b Broker) args(t process.Target) []string {
	args := []string{}
	for _, f := range []struct{ name, value string }{{"pid-file", b.PIDFile}, {"process", b.Name}} {
		if f.value != "" {
			args = append(args, "-"+f.name, f.value)
		}
	}
	if b.Child {
		args = append(args, "-child")
	}
	if t.Pid != 0 {
		args = append(args, "-pid", strconv.Itoa(t.Pid), "-start-ticks", strconv.FormatUint(t.StartTicks, 10))
	}
	return args
}

// digest tells one way to stop the broker from another.
func (b Broker) digest() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%+v", b) // never fails
	return h.Sum64()
}

// stopper stops the target, and what the pid file or the name point to by then.
func (b Broker) stopper(t process.Target) (*process.Stopper, error) {
	s := process.Settings{PIDFile: b.PIDFile, Name: b.Name, Command: b.StopCommand, Seen: t}
	if b.Child {
		s.Seen = process.Target{}
		s.Child = func() (process.Target, bool) { return t, t.Pid != 0 && !t.Gone() }
	}
	return process.NewStopper(s)
}
