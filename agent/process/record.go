package process

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"holdfast/probes"
)

// markVar is the variable in the child's environment that a record is found again by.
const markVar = "HOLDFAST_CHILD"

// record is what the next sidecar, and the guard, must know of a child. It is
// written before the child is started, with a mark only, and again with the process:
// whatever dies in between, the child is found by the mark in its environment.
type record struct {
	BootID  string `json:"boot_id"`
	Mark    string `json:"mark"`
	Command string `json:"command"` // for people: the program
	Target         // zero: about to be started
}

// save replaces the file in one step or, where there is no room for two, in place. A record is
// worth nothing after a reboot, so it need not survive a power cut.
func (r record) save(path string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the child's record: %w", err)
	}
	tmp := path + ".tmp"
	raw = append(raw, '\n')
	if err = os.WriteFile(tmp, raw, 0o600); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		if Overwrite(path, raw) != nil {
			return fmt.Errorf("write the child's record: %w", err)
		}
	}
	return nil
}

// SameFile reports whether an open file is the one of that name.
func SameFile(f *os.File, path string) bool {
	if f == nil {
		return false
	}
	ours, err := f.Stat()
	there, statErr := os.Stat(path)
	return err == nil && statErr == nil && os.SameFile(ours, there)
}

// Overwrite writes a file in place, for where there is no room for two: torn, it is corrupt. White space
// follows what is shorter than before. A file that has another name, too, is left.
func Overwrite(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	old, err := f.Stat()
	if err == nil && old.Sys().(*syscall.Stat_t).Nlink > 1 {
		err = errors.New("what was put aside would be overwritten")
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	raw = append(raw, bytes.Repeat([]byte{' '}, max(0, int(old.Size())-len(raw)))...)
	_, err = f.WriteAt(raw, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// FindChild looks for the child of this sidecar, or of one before it, by its record
// (a file of the state directory); false: it does not run, and neither does anything that
// it left in its group. An error means that nobody knows.
func FindChild(path string) (Target, bool, error) {
	t, ok, err := recorded(path)
	return t, ok && !GroupGone(t), err
}

// recorded is the child of the record, whether it still runs or not; false: there
// was none since the host started.
func recorded(path string) (Target, bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Target{}, false, nil
	}
	if err != nil {
		return Target{}, false, fmt.Errorf("read the child's record: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return Target{}, false, fmt.Errorf("read the child's record %s: %w: stop the broker, then remove the file", path, err)
	}
	boot, err := BootID()
	switch {
	case err != nil:
		return Target{}, false, err
	case r.BootID != boot:
		return Target{}, false, nil
	case r.Pid == 0:
		return findMarked(r.Mark)
	}
	return r.Target, true, nil
}

// findMarked looks for the leader of a process group with that mark. Descendants
// inherit the mark, not the lead.
func findMarked(mark string) (Target, bool, error) {
	want := []byte(markVar + "=" + mark)
	all, err := probes.Processes(func(v probes.ProcessView) bool { return v.Group == v.Pid && !v.Ended })
	if err != nil {
		return Target{}, false, fmt.Errorf("look for the child: %w", err)
	}
	for _, v := range all {
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(v.Pid), "environ"))
		if err != nil {
			continue // ended, or not ours
		}
		for one := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(one, want) {
				return v.Target, true, nil
			}
		}
	}
	return Target{}, false, nil
}

// BootID is the kernel's name for this boot of the host.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

func newMark() string { return rand.Text() }
