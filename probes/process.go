package probes

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookupFile and lookupName are the pauses between two looks for the process: by
	// pid file, which costs one small read, and by name, which walks /proc.
	lookupFile = 250 * time.Millisecond
	lookupName = time.Second
	// relook is the pause between two looks at the pid file while its process lives.
	relook = time.Second
)

// Process finds the broker's process and notices its end at once, by a pidfd. Where
// the kernel or a seccomp profile refuses pidfds it looks every 100 ms instead.
//
// A pid that the kernel has given to another process is not taken for the broker:
// the start time is compared, and with a pid file, the file must not be older than
// the process. Not guaranteed: that a process is noticed which starts and ends
// between two looks (250 ms with a pid file, 1 s by name). A pid file that names another
// process while the old one lives is noticed within 1 s.
type Process struct {
	Finder  *Finder
	log     *slog.Logger
	lost    chan struct{}
	changes chan struct{}
	view    atomic.Pointer[ProcessView]
}

// NewProcess prepares the watch of one process.
func NewProcess(f *Finder, log *slog.Logger) *Process {
	p := &Process{Finder: f, log: log, lost: make(chan struct{}, 1), changes: make(chan struct{}, 1)}
	p.view.Store(&ProcessView{})
	return p
}

// Lost receives a value when the watched process has ended, or when the pid file
// names another one. It has room for one value.
func (p *Process) Lost() <-chan struct{} { return p.lost }

// Changes receives a value after the view changed.
func (p *Process) Changes() <-chan struct{} { return p.changes }

// Snapshot is the process as last seen.
func (p *Process) Snapshot() ProcessView { return *p.view.Load() }

// Run watches until ctx ends and then returns nil.
func (p *Process) Run(ctx context.Context) error {
	var last ProcessView
	for ctx.Err() == nil {
		v, err := p.find(last)
		if err != nil {
			p.publish(ProcessView{LastError: err.Error()})
			pause := lookupName
			if p.Finder.PIDFile != "" {
				pause = lookupFile
			}
			Sleep(ctx, pause)
			continue
		}
		last = v
		p.publish(v)
		if why := p.await(ctx, v); why != "" {
			Signal(p.lost) // first: readiness hangs on it
			p.publish(ProcessView{LastError: why})
		}
	}
	return nil
}

// await says why the process is not the broker any more, once it is not. It returns
// an empty string when ctx ended.
func (p *Process) await(ctx context.Context, v ProcessView) string {
	var waits sync.WaitGroup
	defer waits.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan bool, 1)
	waits.Go(func() { ended <- v.AwaitEnd(ctx) })
	for {
		select {
		case over := <-ended:
			if over {
				return v.String() + " has ended"
			}
			return ""
		case <-time.After(UntilTick(relook)):
		}
		if known := p.Finder.Saw(v.Target, v.Gone); !known && p.Finder.PIDFile == "" {
			return v.String() + " is not the broker"
		}
		if pid, _, err := readPid(p.Finder.PIDFile); err == nil && pid != v.Pid {
			if other, err := p.find(v); err == nil && other.Pid != v.Pid {
				return fmt.Sprintf("the pid file names %d now, and no longer %d", other.Pid, v.Pid)
			}
		}
	}
}

func (p *Process) publish(v ProcessView) {
	old := p.view.Swap(&v)
	if *old == v {
		return
	}
	p.log.Info("broker process", "was", old.Pid, "is", v.Pid, "started_at", v.StartedAt, "error", v.LastError)
	Signal(p.changes)
}

// find looks for the process. last is the one that was watched last.
func (p *Process) find(last ProcessView) (ProcessView, error) {
	v, err := p.Finder.Find()
	// The file still names the pid of the process that ended, and somebody else has it.
	if err == nil && p.Finder.PIDFile != "" && v.Pid == last.Pid && v.Target != last.Target && v.written.Equal(last.written) {
		err = fmt.Errorf("pid file %s still names %d, which is another process by now", p.Finder.PIDFile, v.Pid)
	}
	return v, err
}
