package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one program that can be started again after it ended. Its output is
// appended to one log file over all its lives. Safe for concurrent use.
type Process struct {
	Name  string
	Place Place

	path string
	args []string
	env  []string // added to our own environment
	dir  string
	log  string

	mu   sync.Mutex
	life *life // nil: never started
}

// life is one run of the program.
type life struct {
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{} // closed after Wait returned
	err     error         // valid after done
}

func (l *Lab) newProcess(name string, place Place, path string, args []string) *Process {
	return &Process{
		Name: name, Place: place, path: path, args: args,
		dir: l.Dir, log: filepath.Join(l.Dir, name+".log"),
	}
}

// start runs the program. It is an error if it runs already.
func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && p.life.running() {
		return fmt.Errorf("start %s: it runs already as process %d", p.Name, p.life.cmd.Process.Pid)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	life := &life{cmd: cmd, started: time.Now(), done: make(chan struct{})}
	if err := startCmd(cmd, p.Place.Namespace); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		life.err = cmd.Wait()
		close(life.done)
	}()
	p.life = life
	return nil
}

func (l *life) running() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// current is the present or last life; nil before the first start.
func (p *Process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// PID is the process id of the present or last life, 0 before the first start.
func (p *Process) PID() int {
	if l := p.current(); l != nil {
		return l.cmd.Process.Pid
	}
	return 0
}

// Running says whether the process has been started and has not ended.
func (p *Process) Running() bool {
	l := p.current()
	return l != nil && l.running()
}

// Exited is closed when the present life has ended. Closed if there is none.
func (p *Process) Exited() <-chan struct{} {
	if l := p.current(); l != nil {
		return l.done
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// ExitCode is the exit code of the last life, -1 if a signal ended it, and an
// error while it runs or before it ran.
func (p *Process) ExitCode() (int, error) {
	l := p.current()
	if l == nil || l.running() {
		return 0, fmt.Errorf("exit code of %s: it has not ended", p.Name)
	}
	return l.cmd.ProcessState.ExitCode(), nil
}

// Signal sends a signal to the process alone, not to its group.
func (p *Process) Signal(sig syscall.Signal) error {
	l := p.current()
	if l == nil || !l.running() {
		return fmt.Errorf("signal %s with %v: it is not running", p.Name, sig)
	}
	if err := l.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s with %v: %w", p.Name, sig, err)
	}
	return nil
}

// Kill is kill -9 of the process alone, and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Exited()
	return nil
}

// Freeze stops the process from running (SIGSTOP); its sockets stay open. It returns
// when every thread has stopped: until one of them has taken the signal up, which on
// a busy machine takes a while, the others run on.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return Await(context.Background(), Patience, p.Name+" to be frozen", func(context.Context) (bool, string) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil || len(stats) == 0 {
			return false, "no threads"
		}
		for _, path := range stats {
			b, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) {
				continue // the thread ended
			}
			// The state follows the name, which is in brackets: proc_pid_stat(5).
			_, rest, ok := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
			if err != nil || !ok || !strings.HasPrefix(rest, "T") {
				return false, string(b)
			}
		}
		return true, ""
	})
}

// Thaw lets a frozen process run on.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Stop asks the process to end (SIGTERM) and waits. The error says if ctx ended
// first; the process is then left alone.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: still running: %w", p.Name, ctx.Err())
	}
}

// close kills what is left of the process and its group.
func (p *Process) close() error {
	l := p.current()
	if l == nil {
		return nil
	}
	// The group may outlive its leader, so it is killed in any case.
	err := syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	<-l.done
	if err != nil {
		return fmt.Errorf("kill group of %s: %w", p.Name, err)
	}
	return nil
}

// LogPath is the file with the output of all lives.
func (p *Process) LogPath() string { return p.log }

// LogTail is the last n lines of the log, or why it cannot be read.
func (p *Process) LogTail(n int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// diedError says that a process ended while something was awaited from it.
func (p *Process) diedError() error {
	code, _ := p.ExitCode()
	return fmt.Errorf("%s ended with exit code %d; last lines of %s:\n%s", p.Name, code, p.log, p.LogTail(15))
}

// tailBuffer keeps the output of short commands. Safe for concurrent use.
type tailBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(b)
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.b.String())
}
