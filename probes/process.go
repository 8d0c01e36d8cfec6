package probes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
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
	pidFile, name string
	expected      Target // by an earlier watch; zero: none
	log           *slog.Logger
	lost          chan struct{}
	changes       chan struct{}
	view          atomic.Pointer[ProcessView]
}

// NewProcess prepares the watch of one process, found by pidFile, by name, or by
// both: then the process in the pid file must have the name.
func NewProcess(pidFile, name string, log *slog.Logger) *Process {
	p := &Process{pidFile: pidFile, name: name, log: log, lost: make(chan struct{}, 1), changes: make(chan struct{}, 1)}
	p.view.Store(&ProcessView{})
	return p
}

// Expect says which process was found to be the one before this watch began. It is called
// before Run.
func (p *Process) Expect(t Target) { p.expected = t }

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
			if p.pidFile != "" {
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
	for ctx.Err() == nil {
		watch, stop := context.WithTimeout(ctx, UntilTick(relook))
		ended := v.AwaitEnd(watch)
		stop()
		if ended {
			return v.String() + " has ended"
		}
		if pid, _, err := readPid(p.pidFile); err == nil && pid != v.Pid {
			if other, err := p.find(v); err == nil && other.Pid != v.Pid {
				return fmt.Sprintf("the pid file names %d now, and no longer %d", other.Pid, v.Pid)
			}
		}
	}
	return ""
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
	v, err := FindProcess(p.pidFile, p.name, cmp.Or(last.Target, p.expected))
	// The file still names the pid of the process that ended, and somebody else has it.
	if err == nil && p.pidFile != "" && v.Pid == last.Pid && v.Target != last.Target && v.written.Equal(last.written) {
		err = fmt.Errorf("pid file %s still names %d, which is another process by now", p.pidFile, v.Pid)
	}
	return v, err
}
