package process

import (
	"fmt"
	"os"

	"holdfast/probes"
)

// Target is one process, told from a later one with the same pid by its start.
type Target = probes.Target

// Finder finds the broker's process, and Clues are what one in another process is told.
type (
	Finder = probes.Finder
	Clues  = probes.Clues
)

// TargetOf is the process that has the pid now. The error wraps probes.ErrNoProcess
// when there is none.
func TargetOf(pid int) (Target, error) {
	v, err := probes.ReadProcess(pid)
	return v.Target, err
}

// GroupGone is true when the process and whatever is left of the group that it led are
// proven to have ended: a script that did not exec ends before what it started.
func GroupGone(t Target) bool {
	if !t.Gone() {
		return false
	}
	members, err := group(t)
	return err == nil && len(members) == 0
}

// group lists the group that the process leads or led. As long as it has a member the
// kernel gives its number to nobody else; so whoever has the number now and is not the
// leader, proves it empty.
func group(t Target) ([]probes.ProcessView, error) {
	in, err := probes.Processes(func(v probes.ProcessView) bool { return v.Group == t.Pid && !v.Ended })
	if now, its := TargetOf(t.Pid); its == nil && now != t {
		return nil, err
	}
	return in, err
}

// Space names this boot of the host and our pid namespace: within one, a Target means the
// same process for ever.
func Space() (string, error) {
	boot, err := BootID()
	if err != nil {
		return "", err
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("read the pid namespace: %w", err)
	}
	return boot + " " + pids, nil
}
