package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CanHang is nil if a leader can be made to hang here, as HangLeader does, else it says
// why not.
func CanHang() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("to hang a server needs root")
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return fmt.Errorf("to hang a server needs strace: %w", err)
	}
	_, err := LyingEtcd()
	return err
}

// LyingEtcd finds an etcd whose leader goes on confirming renewals while it hangs in its
// disk and others lead: Debian's. Since 3.4.31 and 3.5.13 such a leader steps down.
func LyingEtcd() (path string, err error) {
	if path, err = Debian("etcd", "etcd-server"); err != nil {
		return "", err
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	patch, old := strings.CutPrefix(line, "etcd Version: 3.4.")
	if n, err := strconv.Atoi(patch); !old || err != nil || n >= 31 {
		return "", fmt.Errorf("%s is no etcd before 3.4.31: %q", path, line)
	}
	return path, nil
}

// hangFor is longer than any run.
const hangFor = 10 * time.Minute

// HangDisk has every fdatasync of the server's log of writes hang from now on, until the
// lab ends, as one does that has a disk of its own. A commit of the database that hangs too
// would keep the revision from the header of a confirmation, and so the confirmation from
// whoever asks. It returns when each thread is hooked.
func (e *Etcd) HangDisk(ctx context.Context) error {
	logs, err := filepath.Glob(filepath.Join(e.dataDir(), "member", "wal", "*.wal"))
	if err != nil || len(logs) != 1 {
		return fmt.Errorf("hang the disk of %s: %d logs of writes, want one", e.Name, len(logs))
	}
	hook := e.lab.newProcess(e.Name+"-disk", Place{}, "strace", []string{
		"-f", "-p", strconv.Itoa(e.PID()), "-P", logs[0],
		"-e", "trace=fdatasync", "-e", fmt.Sprintf("inject=fdatasync:delay_enter=%ds", int(hangFor.Seconds())),
	})
	if err := hook.start(); err != nil {
		return err
	}
	e.lab.own(hook)
	return awaitProcess(ctx, hook, Patience, "the threads of "+e.Name+" to be hooked", func(context.Context) (bool, string) {
		traced, err := allTraced(e.PID())
		return traced, fmt.Sprint(err)
	})
}

func allTraced(pid int) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, task := range tasks {
		b, err := os.ReadFile(dir + "/" + task.Name() + "/status")
		if err != nil {
			return false, err
		}
		if strings.Contains(string(b), "\nTracerPid:\t0\n") {
			return false, fmt.Errorf("thread %s is not", task.Name())
		}
	}
	return true, nil
}

// HangLeader has the disk of that member hang while it leads, and returns once the others
// have another leader. The one that hangs takes itself for the leader on. One that has lost
// the lead since the caller asked, as happens where disks are slow, gets it back first.
func (c *EtcdCluster) HangLeader(ctx context.Context, leader *Etcd) error {
	id, err := memberID(ctx, leader)
	if err != nil {
		return err
	}
	if err := c.giveLead(ctx, leader, id); err != nil {
		return err
	}
	if err := leader.HangDisk(ctx); err != nil {
		return err
	}
	healthy := c.Other(leader)
	return Await(ctx, Patience, "another leader than "+leader.Name, func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		// It hangs as soon as it has something to write.
		_, _ = healthy.Client().Put(ctx, "/lab/hang", "")
		st, err := healthy.Client().Status(ctx, healthy.Endpoint())
		if err != nil {
			return false, err.Error()
		}
		return st.Leader != 0 && st.Leader != id, fmt.Sprintf("%x leads", st.Leader)
	})
}

// giveLead has the member lead whose ID that is.
func (c *EtcdCluster) giveLead(ctx context.Context, e *Etcd, id uint64) error {
	return Await(ctx, Patience, e.Name+" to lead", func(ctx context.Context) (bool, string) {
		now, err := c.Leader(ctx)
		if err != nil || now == e {
			return err == nil, fmt.Sprint(err)
		}
		_, err = now.Client().MoveLeader(ctx, id)
		return false, fmt.Sprintf("%s leads: %v", now.Name, err)
	})
}

func memberID(ctx context.Context, e *Etcd) (uint64, error) {
	st, err := e.Client().Status(ctx, e.Endpoint())
	if err != nil {
		return 0, fmt.Errorf("ask %s who it is: %w", e.Name, err)
	}
	return st.Header.MemberId, nil
}

// Other is a member that is not that one.
func (c *EtcdCluster) Other(than *Etcd) *Etcd {
	for _, e := range c.Members {
		if e != than {
			return e
		}
	}
	return nil
}
