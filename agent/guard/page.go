package guard

import (
	"encoding/json"
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
// How long the guard may sleep is a part of the word; one that is to be read sooner,
// because it is nearer than the word before or names another process, wakes the guard.
type page struct {
	magic    atomic.Uint64
	stopAt   atomic.Int64 // boot clock, ns; 0: disarmed
	killAt   atomic.Int64
	deadline atomic.Int64
	heardAt  atomic.Int64 // when the sidecar last armed, or postponed
	goodbye  atomic.Bool
	beat     atomic.Int64 // when its loop last ran
	nap      atomic.Int64 // for how long the word may be left unread, ns
	owner    atomic.Int64 // pid of the sidecar
	// A process that a pid file or a name leads to, and that is not the broker.
	shunned mark
	// The number of the post in force, which stands in posts. It is written last, so a
	// sidecar that dies before leaves the post as it was.
	number atomic.Uint64
	posts  [2]slot

	// Written by the guard.
	held     atomic.Uint64 // the number of the post that it keeps
	standing atomic.Bool   // it keeps the word from here on, and may be woken
	spent    atomic.Int64  // the stopAt that it acts upon
	fired    mark          // the process that it stops, or has stopped last
	trying   atomic.Bool   // it is stopping something
	acts     atomic.Uint64 // grows when it has written down what it did
}

// mark is a process that may be another at any moment.
type mark struct {
	pid   atomic.Int64 // 0: none
	ticks atomic.Uint64
}

// set writes the pid last: with it the word counts.
func (m *mark) set(t process.Target) {
	m.pid.Store(0)
	m.ticks.Store(t.StartTicks)
	m.pid.Store(int64(t.Pid))
}

// is reports whether it is that process, which is one.
func (m *mark) is(t process.Target) bool {
	return t.Pid != 0 && t == process.Target{Pid: int(m.pid.Load()), StartTicks: m.ticks.Load()}
}

// slotSize is the room for a post as JSON: a path of the greatest length, and more.
const slotSize = 16 << 10

type slot struct {
	size atomic.Uint32
	text [slotSize]byte
}

// arm reports whether the guard has to be woken for it.
func (p *page) arm(v lease.Validity, now lease.Instant) (nearer bool) {
	before := lease.Instant(p.stopAt.Load())
	stopAt, killAt := Points(v)
	p.heardAt.Store(int64(now))
	p.deadline.Store(int64(v.Deadline()))
	p.killAt.Store(int64(killAt))
	p.nap.Store(int64(v.TTL / 2))
	p.stopAt.Store(int64(stopAt))
	return stopAt < before
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

// order gives the guard another post. Only one may do that at a time.
func (p *page) order(o post) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the guard's post: %w", err)
	}
	if len(text) > slotSize {
		return fmt.Errorf("what the guard is to know of the broker has %d bytes, more than %d: shorten --stop-command", len(text), slotSize)
	}
	next := p.number.Load() + 1
	s := &p.posts[next%2]
	copy(s.text[:], text)
	s.size.Store(uint32(len(text)))
	p.number.Store(next)
	return nil
}

// post is the post in force and its number; 0: there was none yet.
func (p *page) post() (o post, number uint64, err error) {
	var text []byte
	for number = p.number.Load(); ; number = p.number.Load() {
		s := &p.posts[number%2]
		text = append(text[:0], s.text[:min(s.size.Load(), slotSize)]...)
		if p.number.Load() == number { // else it may be half of the one after
			break
		}
	}
	if number == 0 {
		return post{}, 0, nil
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return post{}, number, fmt.Errorf("read the guard's post: %w", err)
	}
	return o, number, nil
}

// shuns says that a process is not the broker; nil: it may be.
func (p *page) shuns(t process.Target) error {
	if !p.shunned.is(t) {
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
	if err := f.Truncate(int64(unsafe.Sizeof(page{}))); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make memory to share with the guard: %w", err), f.Close())
	}
	p, err := mapPage(f)
	if err == nil {
		p.magic.Store(pageMagic)
	}
	return p, f, err
}

func descriptor(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

// hasPage looks whether the process has a page as that descriptor. What a file is called
// there is decided by who made it; this is a check against accidents, such as a pid that
// is another process's by now.
func hasPage(pid, fd int) error {
	path := descriptor(pid, fd)
	if link, err := os.Readlink(path); err != nil || !strings.Contains(link, pageName) {
		return fmt.Errorf("%s is no page of a guard: %q: %w", path, link, errors.Join(err, errNoPage))
	}
	return nil
}

// openPage opens the page that the process has as a descriptor.
func openPage(pid, fd int) (*page, *os.File, error) {
	if err := hasPage(pid, fd); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(descriptor(pid, fd), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the page of the guard: %w", err)
	}
	p, err := mapPage(f)
	if err == nil && p.magic.Load() != pageMagic {
		err = errors.Join(fmt.Errorf("%s has format %x, this version knows %x: %w", f.Name(), p.magic.Load(), uint64(pageMagic), errNoPage), f.Close())
	}
	return p, f, err
}

var errNoPage = errors.New("not a page that this version understands")

// mapPage maps the file for the rest of this process's life: a late store must find it. One that cannot
// be mapped is closed.
func mapPage(f *os.File) (*page, error) {
	var mem []byte
	info, err := f.Stat()
	if err == nil && info.Size() < int64(unsafe.Sizeof(page{})) {
		err = fmt.Errorf("%d bytes: %w", info.Size(), errNoPage)
	}
	if err == nil {
		mem, err = unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(page{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the page of the guard: %w", err), f.Close())
	}
	return (*page)(unsafe.Pointer(&mem[0])), nil
}
