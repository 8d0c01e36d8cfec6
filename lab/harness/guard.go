package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PIDs are the processes whose command lines are such, that of the first start first.
func PIDs(match func(args []string) bool) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || len(line) == 0 || !match(strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// Guard is the process of the sidecar's dead-man guard, which may outlive it: another one of
// the same program that has the state directory. 0: there is none.
func (s *Sidecar) Guard() int {
	for _, pid := range PIDs(func(args []string) bool {
		return len(args) > 1 && args[1] != "run" && slices.Contains(args, s.StateDir)
	}) {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err == nil && strings.TrimSuffix(exe, " (deleted)") == s.binary {
			return pid
		}
	}
	return 0
}

// AwaitGuarded waits until the sidecar says that a guard stands by for its broker.
func (s *Sidecar) AwaitGuarded(ctx context.Context, bound time.Duration) error {
	_, err := s.Await(ctx, bound, "a guard", func(st Status) bool { return st.Guard.State == "stands_by" })
	return err
}

// PrivateMemory is what a process has in memory for itself alone, in bytes: what would
// be free if it ended.
func PrivateMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	var sum int64
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if name == "Private_Clean" || name == "Private_Dirty" {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read memory of process %d: %w", pid, err)
			}
			sum += kb << 10
		}
	}
	return sum, nil
}
