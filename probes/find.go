package probes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Finder finds the broker's process, by pid file, by name, or by both: then the process in the pid file
// must have the name. It is the one way to find it, for who watches, who stops and who guards; those of
// one sidecar share one. It is safe for concurrent use.
//
// Of processes with the name the broker is the known one while it lives, then the one that holds the
// admin port. Guaranteed: one that was seen to run beside the broker is not taken for it, unless it holds
// that port. A name alone leads to the broker only where it is not seen who holds the port (another network
// namespace, a proxy, another user's process), and no two processes were seen to have the name. Not
// guaranteed: that the broker is found before it listens, or at another port than it had; and, where the
// port is not seen, that it is told from a process that nobody saw beside it.
type Finder struct {
	PIDFile, Name string
	// Admin are the addresses of the admin port; an error: they are not known. Nil, or no address: there
	// is no port to go by.
	Admin func() ([]netip.AddrPort, error)

	mu   sync.Mutex
	past past
	at   []netip.AddrPort // as Admin said last, or as another Finder knew
}

// Clues are what a Finder hands to one in another process.
type Clues struct {
	Admin  []netip.AddrPort `json:"admin,omitempty"`
	Strict bool             `json:"strict,omitempty"` // see past
	Told   bool             `json:"told,omitempty"`
}

// past is what is known of the broker's process from before.
type past struct {
	known  Target // the broker's process, as last found; zero: none was
	lived  uint64 // up to when it lived for certain, in clock ticks since the boot: who started before that ran beside it
	not    Target // was judged to be another's; zero: none was
	strict bool   // several processes had the name: it proves nothing alone
	told   bool   // the port has told: who holds another one is not the broker
}

func (p *past) expect(t Target) { p.known, p.lived = t, t.StartTicks }

func (p *past) lives() bool { return p.known.Pid != 0 && !p.known.Gone() }

// namesake is a process with the broker's name.
type namesake struct {
	ProcessView
	port Holding // of the admin port: yes, no or unknown
}

// founders leaves out those that another one has forked: they are its own.
func founders(all []namesake) []namesake {
	return slices.DeleteFunc(slices.Clone(all), func(n namesake) bool {
		return slices.ContainsFunc(all, func(o namesake) bool { return o.Pid == n.Parent })
	})
}

var errUndecided = errors.New("which one holds the admin port is not seen")

// choose says which of all is the broker's process, and notes it. The error is ErrNoProcess where none of
// them can be it, and errUndecided where one may.
func (p *past) choose(all []namesake, lives bool, now uint64) (Target, error) {
	p.strict = p.strict || len(founders(all)) > 1
	if lives {
		p.lived = now
		return p.known, nil
	}
	fresh := p.known == Target{}
	may := slices.DeleteFunc(slices.Clone(all), func(n namesake) bool {
		return n.port != HoldingYes && (n.StartTicks < p.lived || n.Target == p.not || fresh && n.port == HoldingNo)
	})
	holders := founders(slices.DeleteFunc(slices.Clone(may), func(n namesake) bool { return n.port != HoldingYes }))
	switch {
	case len(may) == 0:
		return Target{}, ErrNoProcess
	case len(holders) == 1:
		may, p.told = holders, true
	case p.strict || len(may) > 1 || may[0].port == HoldingNo:
		return Target{}, errUndecided
	}
	p.expect(may[0].Target)
	return p.known, nil
}

// Find looks once for the broker's process. The error names what was looked for and what to set.
func (f *Finder) Find() (v ProcessView, err error) {
	if f.PIDFile == "" {
		return f.byName()
	}
	f.mu.Lock()
	known := f.past.known
	f.mu.Unlock()
	if v, err = findByFile(f.PIDFile, f.Name, known); err == nil {
		err = neverBroker("pid file "+f.PIDFile, v)
	}
	if err == nil {
		f.Expect(v.Target, Clues{})
	}
	return v, err
}

// byName walks /proc, and, where the known process is gone, the sockets of this host.
func (f *Finder) byName() (ProcessView, error) {
	var all []namesake
	pids := ""
	_, err := Processes(func(v ProcessView) bool {
		if !v.Ended && named(v.Pid, f.Name) {
			all, pids = append(all, namesake{ProcessView: v}), fmt.Sprintf("%s, %d", pids, v.Pid)
		}
		return false
	})
	f.mu.Lock()
	looked := !f.past.lives()
	f.mu.Unlock()
	if err == nil && looked && len(all) > 0 {
		err = f.lookAtPort(all)
	}
	if err != nil {
		return ProcessView{}, fmt.Errorf("look for process %q: %w", f.Name, err)
	}
	f.mu.Lock()
	now := bootTicks()
	lives := f.past.lives()
	if !lives && !looked { // it has just ended
		f.mu.Unlock()
		return f.byName()
	}
	defer f.mu.Unlock()
	next := f.past
	t, err := next.choose(all, lives, now)
	switch {
	case errors.Is(err, ErrNoProcess) && len(all) == 0:
		err = fmt.Errorf("look for process %q: %w: see --broker-process", f.Name, err)
	case errors.Is(err, ErrNoProcess):
		err = fmt.Errorf("look for process %q: %w: of that name there is %s, which does not hold the admin port or ran beside the broker: "+
			"start the broker, or set --broker-pid-file", f.Name, err, pids[2:])
	case err != nil && len(all) > 1:
		err = fmt.Errorf("several processes are called %q (%s), and %w: set --broker-pid-file", f.Name, pids[2:], err)
	case err != nil:
		err = fmt.Errorf("whether the process that is called %q (%s) is the broker is not known, and %w: start the broker, or set --broker-pid-file", f.Name, pids[2:], err)
	}
	var v ProcessView
	if err == nil {
		v, err = ReadProcess(t.Pid)
	}
	if err == nil {
		err = neverBroker(fmt.Sprintf("--broker-process %q", f.Name), v)
	}
	f.past = next
	return v, err
}

// lookAtPort notes who holds the admin port. If nobody with the name ever did and somebody else does, as a
// proxy, or one who is not seen, it tells nothing.
func (f *Finder) lookAtPort(all []namesake) error {
	at, err := f.admin()
	if err != nil {
		return err
	}
	sockets, here := listenersAt(at)
	f.mu.Lock()
	held := f.past.told
	f.mu.Unlock()
	for i, n := range all {
		if here {
			all[i].port = holdingOf(n.Pid, sockets)
		}
		held = held || all[i].port == HoldingYes
	}
	for i, n := range all {
		if !held && len(sockets) > 0 && n.port == HoldingNo {
			all[i].port = HoldingUnknown
		}
	}
	return nil
}

// admin asks for the addresses of the admin port. What was good last is, where nobody answers.
func (f *Finder) admin() (at []netip.AddrPort, err error) {
	if f.Admin != nil {
		at, err = f.Admin()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(at) > 0 {
		f.at = at
	}
	if len(f.at) > 0 {
		err = nil
	}
	return f.at, err
}

// Expect says which process is known to be the broker, and what another Finder has for this one.
func (f *Finder) Expect(t Target, c Clues) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past.strict, f.past.told = f.past.strict || c.Strict, f.past.told || c.Told
	if len(c.Admin) > 0 {
		f.at = c.Admin
	}
	if t != f.past.known && t.Pid != 0 {
		f.past.expect(t)
	}
}

// Saw has the known process looked at: the sooner its end is seen, the fewer others may have started before
// that. It reports whether t is the known one.
func (f *Finder) Saw(t Target, gone func() bool) bool {
	now := bootTicks() // before the look: what starts after that may be the next one
	lives := !gone()
	f.mu.Lock()
	defer f.mu.Unlock()
	if t != f.past.known {
		return false
	}
	if lives {
		f.past.lived = now
	}
	return true
}

// Forget says that a process that a name led to is not the broker.
func (f *Finder) Forget(t Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.PIDFile == "" && t == f.past.known {
		f.past = past{strict: f.past.strict, told: f.past.told, not: t}
	}
}

// Strict reports whether no name alone leads to the broker: several processes had it.
func (f *Finder) Strict() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.past.strict
}

// Clues are for a Finder in another process. Where the addresses are not known, a name alone must not do.
func (f *Finder) Clues() Clues {
	if f.PIDFile != "" || f.Name == "" {
		return Clues{}
	}
	at, err := f.admin()
	f.mu.Lock()
	defer f.mu.Unlock()
	return Clues{slices.SortedFunc(slices.Values(at), netip.AddrPort.Compare), f.past.strict || err != nil, f.past.told}
}

func bootTicks() uint64 {
	var boot unix.Timespec // suspended time included, as /proc counts it
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	return uint64(boot.Nano() / int64(time.Second/ticksPerSecond))
}
