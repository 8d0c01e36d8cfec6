package guard

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
	"holdfast/agent/process"
)

// pageMagic is the format of the page: "hfguard" and a number.
const pageMagic = 0x6866677561726402

// pageName is what /proc calls the page.
const pageName = "holdfast-guard"

// page is the memory that the sidecar and its guard share. Each field is written by one
// of them, whole, so a crash at any moment leaves a word that was meant: of the moments
// only stopAt begins anything, and it is written last when armed, first when disarmed.
type page struct {
	magic    atomic.Uint64
	stopAt   atomic.Int64 // boot clock, ns; 0: disarmed
	killAt   atomic.Int64
	deadline atomic.Int64
	heardAt  atomic.Int64 // when the sidecar last armed, or postponed
	beat     atomic.Int64 // when its loop last ran
	nap      atomic.Int64 // for how long the word may be left unread, ns
	goodbye  atomic.Bool
	owner    atomic.Int64 // pid of the sidecar
	pid      atomic.Int64 // the target of the present guard; 0: none
	ticks    atomic.Uint64
	broker   atomic.Uint64 // digest of how it stops the broker
	spent    atomic.Int64  // written by the guard: the stopAt that it acts upon
	standing atomic.Bool   // written by the guard: it keeps the word from here on
	// A process that a pid file or a name leads to, and that is not the broker; pid 0: none.
	shunned      atomic.Int64
	shunnedTicks atomic.Uint64
}

func (p *page) arm(v lease.Validity, now lease.Instant) {
	stopAt, killAt := Points(v)
	p.heardAt.Store(int64(now))
	p.deadline.Store(int64(v.Deadline()))
	p.killAt.Store(int64(killAt))
	p.nap.Store(int64(v.TTL / 2))
	p.stopAt.Store(int64(stopAt))
}

// postpone moves the moment later, and never nearer: a reader between the two stores
// kills later than it was told, not sooner.
func (p *page) postpone(stopAt, now lease.Instant) {
	o := p.orders().Postponed(stopAt)
	p.heardAt.Store(int64(now))
	p.killAt.Store(int64(o.KillAt))
	p.stopAt.Store(int64(o.StopAt))
}

func (p *page) disarm() { p.stopAt.Store(0) }

// orders reads stopAt first: a killAt that belongs to a later one is never too early.
func (p *page) orders() Orders {
	return Orders{
		StopAt: lease.Instant(p.stopAt.Load()), KillAt: lease.Instant(p.killAt.Load()),
		Spent: lease.Instant(p.spent.Load()), Beat: lease.Instant(p.beat.Load()),
		Nap: time.Duration(p.nap.Load()), Goodbye: p.goodbye.Load(),
	}
}

func (p *page) target() process.Target {
	return process.Target{Pid: int(p.pid.Load()), StartTicks: p.ticks.Load()}
}

// shun writes the pid last: with it the word counts.
func (p *page) shun(t process.Target) {
	p.shunned.Store(0)
	p.shunnedTicks.Store(t.StartTicks)
	p.shunned.Store(int64(t.Pid))
}

// shuns says that a process is not the broker; nil: it may be.
func (p *page) shuns(t process.Target) error {
	if t.Pid == 0 || t != (process.Target{Pid: int(p.shunned.Load()), StartTicks: p.shunnedTicks.Load()}) {
		return nil
	}
	return fmt.Errorf("%s is not the broker: %w", t, process.ErrNotFound)
}

// newPage makes a page. The file keeps it, and is what a guard inherits.
func newPage() (*page, *os.File, error) {
	fd, err := unix.MemfdCreate(pageName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("make memory to share with the guard: %w", err)
	}
	f := os.NewFile(uintptr(fd), pageName)
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make memory to share with the guard: %w", err), f.Close())
	}
	p, err := mapPage(f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	p.magic.Store(pageMagic)
	return p, f, nil
}

// openPage opens the page that the process has as a descriptor.
func openPage(pid, fd int) (*page, *os.File, error) {
	path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
	// What a file is called there is decided by who made it; this is a check against
	// accidents, such as a pid that is another process's by now.
	if link, err := os.Readlink(path); err != nil || !strings.Contains(link, pageName) {
		return nil, nil, fmt.Errorf("%s is no page of a guard: %q: %w", path, link, errors.Join(err, errNoPage))
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the page of the guard: %w", err)
	}
	p, err := mapPage(f)
	if err == nil && p.magic.Load() != pageMagic {
		err = fmt.Errorf("%s has format %x, this version knows %x: %w", path, p.magic.Load(), uint64(pageMagic), errNoPage)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return p, f, nil
}

var errNoPage = errors.New("not a page that this version understands")

// mapPage maps the file for the rest of this process's life: a late store must find it.
func mapPage(f *os.File) (*page, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("map the page of the guard: %w", err)
	}
	if info.Size() < int64(unsafe.Sizeof(page{})) {
		return nil, fmt.Errorf("map the page of the guard: %d bytes: %w", info.Size(), errNoPage)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the page of the guard: %w", err)
	}
	return (*page)(unsafe.Pointer(&mem[0])), nil
}
