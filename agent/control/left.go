package control

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/agent/config"
	"holdfast/agent/guard"
	"holdfast/probes"
)

// What a sidecar that does not answer left in its state directory.

const (
	// LockFile holds the pid of the sidecar that has locked a state directory.
	LockFile = "lock"
	// ShadowDir is where a shadow keeps its state, below the real one's directory.
	ShadowDir = "shadow"
)

// ErrNoSidecar says that nobody listens on the control socket.
var ErrNoSidecar = errors.New("no sidecar answers")

// LeftJournal is the journal of a sidecar that does not run, oldest event first, and what its guard
// did since. It is
// empty only if there are no files, which is no error here: the caller knows what to say.
// It refuses the journal of a sidecar that runs, and has its socket elsewhere.
func LeftJournal(stateDir string) ([]Event, error) {
	if pid, dir := holderOf(stateDir); pid != 0 {
		return nil, fmt.Errorf("process %d holds --state-dir %s and does not listen on this socket: give its --control-socket, or wait until it has started", pid, dir)
	}
	for _, dir := range stateDirs(stateDir) {
		j := &Journal{path: filepath.Join(dir, journalFile), next: 1}
		for _, path := range []string{j.path + ".1", j.path} {
			if err := j.read(path); err != nil {
				return nil, fmt.Errorf("no sidecar runs here, and its journal %s: %s: run as the user of the sidecar, or as root", path, config.Cause(err))
			}
		}
		if len(j.events) > 0 {
			for _, act := range guard.ActsOf(dir) {
				if e, news := j.shot(act, 0); news {
					e.ID, e.At = j.next, act.At
					j.keep(e)
				}
			}
			return j.events, nil
		}
	}
	return nil, nil
}

// withGuard adds to an error the guard that stands, in a line of its own: it acts on the
// broker, and nobody else tells of it while the sidecar does not answer. next says what to
// do first.
func withGuard(stateDir string, err error, next string) error {
	left, ok := guard.StandingOf(stateDir)
	if pid, _ := holderOf(stateDir); !ok || pid != 0 { // who lives has a use for it
		return err
	}
	return fmt.Errorf("%w\n%s%s; %s", err, left, next, left.Hint())
}

// stateDirs are where a sidecar with that --state-dir keeps its state: one with --shadow
// keeps it apart.
func stateDirs(stateDir string) []string {
	return []string{stateDir, filepath.Join(stateDir, ShadowDir)}
}

// LockHolder is the process that has locked a state directory; 0: none that is seen. To
// ask by locking would be in the way of a sidecar that starts.
func LockHolder(dir string) int {
	var lock unix.Stat_t
	if unix.Stat(filepath.Join(dir, LockFile), &lock) != nil {
		return 0
	}
	inode := ":" + strconv.FormatUint(lock.Ino, 10)
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(locks) { // "1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF"
		f := strings.Fields(string(line))
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}

// holderOf is the sidecar that has locked one of those directories; 0: none that is seen.
func holderOf(stateDir string) (pid int, dir string) {
	for _, dir := range stateDirs(stateDir) {
		if pid := LockHolder(dir); pid != 0 {
			return pid, dir
		}
	}
	return 0, ""
}

// Held reports whether a sidecar holds a state directory, be it that it starts, runs or ends.
func Held(stateDir string) bool { return LockHolder(stateDir) != 0 }

// stoppedSidecar is the sidecar of a state directory if it was stopped by a signal, 0 if
// it was not or cannot be seen.
func stoppedSidecar(stateDir string) int {
	for _, dir := range stateDirs(stateDir) {
		raw, err := os.ReadFile(filepath.Join(dir, LockFile))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if v, unseen := probes.ReadProcess(pid); err == nil && unseen == nil && v.Stopped {
			return pid
		}
	}
	return 0
}
