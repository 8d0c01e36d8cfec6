package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/probes"
)

// StartError says that the child cannot be started at all, and what to do about it.
type StartError struct {
	Program string
	Err     error
}

func (e *StartError) Error() string {
	remedy := "give the path of an executable file after --"
	if errors.Is(e.Err, exec.ErrNotFound) {
		remedy = "install it, or give its path after --"
	}
	return fmt.Sprintf("start the broker %s: %v: %s", e.Program, e.Err, remedy)
}

func (e *StartError) Unwrap() error { return e.Err }

// cause leaves out what our own words say already: the call and the path.
func cause(err error) error {
	if looked, of := errors.AsType[*exec.Error](err); of {
		err = looked.Err
	}
	if tried, of := errors.AsType[*fs.PathError](err); of {
		err = tried.Err
	}
	return err
}

// CheckProgram returns the *StartError that the program would give, as far as that
// can be seen without starting it.
func CheckProgram(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return &StartError{program, cause(err)}
	}
	return nil
}

// adopt takes the child of a sidecar before this one up again.
func (c *Child) adopt() (bool, error) {
	t, runs, err := FindChild(c.settings.Record)
	if err != nil || !runs {
		return false, err
	}
	seen, err := probes.ReadProcess(t.Pid)
	if err != nil || seen.Target != t {
		seen = probes.ProcessView{} // only its group is left, which watch and stopRest end before another is started
	}
	r := record{Mark: newMark(), Command: filepath.Base(c.settings.Command[0]), Target: t}
	if r.BootID, err = BootID(); err != nil {
		return false, err
	}
	_ = r.save(c.settings.Record) // the one before names the same process
	c.publish(ChildView{Target: t, StartedAt: seen.StartedAt})
	c.settings.Log.Info("broker of an earlier sidecar still runs: adopted", "pid", t.Pid)
	c.settings.Tell(Change{To: "adopted", Detail: fmt.Sprintf("process %d, %s", t.Pid, since(seen))})
	return true, nil
}

// since is what to say of the time of a child that was found again.
func since(v probes.ProcessView) string {
	if v.Pid == 0 {
		return "which has ended and left processes of its group behind"
	}
	return "started " + v.StartedAt.UTC().Format(time.RFC3339)
}

var errStopping = errors.New("the broker is being stopped")

// start starts the child, and records it before and after.
func (c *Child) start() error {
	argv := c.settings.Command
	cmd := exec.Command(argv[0], argv[1:]...)
	if cmd.Err != nil {
		return &StartError{argv[0], cause(cmd.Err)}
	}
	boot, err := BootID()
	if err != nil {
		return err
	}
	r := record{BootID: boot, Mark: newMark(), Command: filepath.Base(argv[0])}
	unsaved := r.save(c.settings.Record) // a broker that runs is worth more than a record of it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(Environment(), markVar+"="+r.Mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	// From here on a stop waits: it must see the child, or keep it from starting.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return errStopping
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
			return fmt.Errorf("start the broker %s: %w", argv[0], err)
		}
		return &StartError{argv[0], cause(err)}
	}
	own.Store(cmd.Process.Pid, nil)
	c.cmd = cmd
	v := ChildView{Target: Target{Pid: cmd.Process.Pid}, StartedAt: time.Now(), Starts: c.Snapshot().Starts + 1}
	switch t, err := TargetOf(v.Pid); {
	case err == nil:
		v.Target = t
	case !errors.Is(err, probes.ErrNoProcess): // it cannot be told from a later one
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		own.Delete(v.Pid)
		c.cmd = nil
		return fmt.Errorf("start the broker %s: %w", argv[0], err)
	}
	r.Target = v.Target
	switch err := r.save(c.settings.Record); {
	case err != nil && unsaved != nil:
		c.settings.Log.Error("child not recorded: a later sidecar would take it for a stranger", "err", err)
	case err != nil:
		c.settings.Log.Warn("child not recorded: a later sidecar finds it by its environment", "err", err)
	}
	c.publish(v)
	c.settings.Log.Info("broker started", "pid", v.Pid, "program", argv[0])
	c.settings.Tell(Change{To: "started", Detail: fmt.Sprintf("process %d, %s", v.Pid, filepath.Base(argv[0]))})
	return nil
}

// ours are the variables of systemd's talk with this process. A broker that
// inherited them would announce itself in our name, or be stopped for a watchdog it
// does not feed.
var ours = []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}

// Environment is what a program that we start inherits: all but systemd's talk with
// us.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(ours, name)
	})
}
