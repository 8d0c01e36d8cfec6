package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// Process looks whether the broker's process can be started and stopped.
func Process(c config.Config, log *slog.Logger) Finding {
	f := Finding{What: "process"}
	if len(c.Command) > 0 {
		if err := process.CheckProgram(c.Command[0]); err != nil {
			f.Err = control.UsageError(err)
			return f
		}
	}
	stopper, err := recognize.Stopper(c, log)
	if err != nil {
		f.Err = control.UsageError(err)
		return f
	}
	f.Text = "stopped by " + stopper.Describe()
	if c.BrokerPIDFile != "" || c.BrokerProcess != "" {
		_, f.Err = recognize.Finder(c).Find()
		if errors.Is(f.Err, probes.ErrNeverBroker) {
			f.Err = control.Refused("%w", f.Err)
		}
	}
	if hit, ok := stopper.Target(); ok {
		f.Text += fmt.Sprintf("; now %s", hit)
		if err := unix.Kill(hit.Pid, 0); f.Err == nil && errors.Is(err, unix.EPERM) && c.StopCommand == "" {
			f.Err = fmt.Errorf("%s of the broker: may not be signaled: %w: run holdfast as the user of the broker or with CAP_KILL, or set --stop-command", hit, err)
		}
	}
	return f
}

// User says what root does not find out: what the user may whose the sidecar is.
func User(c config.Config, log *slog.Logger) (f Finding, untried bool) {
	untried = os.Geteuid() == 0
	f = Finding{What: "user", Text: "root, who may read and write everything: what a sidecar of another user may was not tried"}
	if stopper, err := recognize.Stopper(c, log); err == nil && stopper != nil {
		hit, _ := stopper.Target()
		var of unix.Stat_t
		if hit.Pid != 0 && unix.Stat(fmt.Sprintf("/proc/%d", hit.Pid), &of) == nil {
			name := strconv.Itoa(int(of.Uid))
			if who, err := user.LookupId(name); err == nil {
				name = who.Username
			}
			next := fmt.Sprintf("'runuser -u %s -- holdfast check …'", name)
			var its unix.Stat_t
			if file := cmp.Or(c.EtcdPasswordFile, c.EtcdKey); unix.Stat(file, &its) == nil && its.Uid != of.Uid && its.Mode&0o044 == 0 {
				next = fmt.Sprintf("it may not read %s, of which a unit has a copy (LoadCredential=): 'holdfast status' when it runs says what that user lacks", file)
			}
			f.Text += fmt.Sprintf("; the broker's user is %s: %s", name, next)
			untried = untried && of.Uid != 0
		}
	}
	return f, untried
}

// Recognized compares the process that would be stopped with the broker that answers.
func Recognized(ctx context.Context, c config.Config, f Finding, who brokerapi.Report) Finding {
	if len(c.Command) > 0 {
		if _, runs, err := process.FindChild(recognize.ChildRecord(c)); !runs && err == nil {
			f.Warn, f.Text = true, f.Text+"; "+recognize.Stranger(ctx, c)
		}
		return f
	}
	if c.BrokerPIDFile == "" && c.BrokerProcess == "" {
		return f
	}
	seen, err := recognize.Finder(c).Find()
	if err != nil {
		return f // it ended just now
	}
	switch verdict, why := recognize.Process(ctx, c, seen, who); verdict {
	case recognize.IsForeign:
		f.Err = control.Refused("%s", why)
	case recognize.Unknown:
		f.Warn = true
		f.Text += "; cannot tell whether it is the broker: " + why
	}
	return f
}

// Guard says what the guard would stop. That it can be stopped is what Process says.
func Guard(c config.Config) Finding {
	f := Finding{What: "guard"}
	if len(c.Command) > 0 {
		f.Text = "would stop the child of 'holdfast run'"
		return f
	}
	stopper, err := recognize.Stopper(c, nil)
	if err != nil {
		f.Err = control.UsageError(err)
		return f
	}
	f.Text = "would use: " + stopper.Describe()
	if target, found := stopper.Target(); found {
		f.Text += fmt.Sprintf("; %s now", target)
	}
	return f
}
