package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"holdfast/agent/registration"
)

func openDir(t *testing.T, path string) *stateDir {
	t.Helper()
	d, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close() })
	return d
}

func load(t *testing.T, d *stateDir) memory {
	t.Helper()
	m, err := d.load()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMemoryIsReadBackAsItWasSaved(t *testing.T) {
	d := openDir(t, filepath.Join(t.TempDir(), "made", "on", "the", "way"))
	m := load(t, d)
	if m.Format != memoryFormat || len(m.Incarnation) != 32 || m.Distrust != "" || m.FirstBootDone {
		t.Errorf("a new one: %+v", m)
	}
	if again := load(t, d); again.Incarnation == m.Incarnation {
		t.Error("an incarnation that is not saved is given twice")
	}
	m.BrokerID, m.FirstBootDone, m.Instance, m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt = "n1", true, "i", -9e18, 2, 3, 4
	m.Mode, m.Reason, m.By = "drained", "quoted \"words\"\n", "operator"
	if err := d.save(m); err != nil {
		t.Fatal(err)
	}
	if got := load(t, d); !reflect.DeepEqual(got, m) {
		t.Errorf("%+v, want %+v", got, m)
	}
	if info, err := os.Stat(d.file()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v, want 0600", info.Mode(), err)
	}
}

func TestCorruptStateFilesArePutAsideAndDistrusted(t *testing.T) {
	good, err := json.Marshal(newMemory())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, content, says string }{
		{"empty", "", "corrupt (unexpected end"},
		{"cut off", string(good[:len(good)/2]), "is corrupt ("},
		{"zeros", strings.Repeat("\x00", 4096), "corrupt (invalid character"},
		{"two at once", string(good) + string(good), "corrupt (invalid character"},
		{"wrong type", `{"format":1,"lease_id":"x"}`, "corrupt (json"},
		{"no incarnation", `{"format":1}`, "no incarnation"},
		{"null", "null", "has format 0, this version knows 1"},
		{"of a later version", `{"format":2,"incarnation":"` + randomID() + `"}`, "has format 2, this version knows 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := openDir(t, t.TempDir())
			if err := os.WriteFile(d.file(), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			m := load(t, d)
			if !strings.Contains(m.Distrust, c.says) || len(m.Incarnation) != 32 || m.Format != memoryFormat {
				t.Errorf("%+v, want distrust with %q", m, c.says)
			}
			aside, err := os.ReadFile(d.file() + ".corrupt")
			if err != nil || string(aside) != c.content {
				t.Errorf("put aside: %q, %v", aside, err)
			}
			// A crash right after must not forget it, and nor must a disk that takes no save.
			if got := load(t, d); !strings.Contains(got.Distrust, c.says) {
				t.Errorf("not saved, and started again: %q", got.Distrust)
			}
			if err := d.save(m); err != nil {
				t.Fatal(err)
			}
			if got := load(t, d); got.Distrust != m.Distrust {
				t.Errorf("after a restart: %q", got.Distrust)
			}
		})
	}
}

// With --registration none the file alone knows that an operator has drained the broker.
func TestAFullDiskTakesTheModeThatNothingElseKeeps(t *testing.T) {
	path := t.TempDir()
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs a file system of its own to fill: %v", err)
	}
	defer syscall.Unmount(path, syscall.MNT_DETACH)
	d := openDir(t, path)
	defer d.close()
	m := memory{Format: memoryFormat, Past: registration.Past{Incarnation: randomID(), Reason: "a reason that is longer than the next"}}
	if err := d.save(m); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "ballast"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	m.Reason = "operator"
	if err := d.save(m); err == nil {
		t.Error("saved without room for two")
	}
	d.only = true
	if err := d.save(m); err != nil {
		t.Error(err)
	}
	if got := load(t, d); got.Reason != "operator" || got.Distrust != "" {
		t.Errorf("%+v", got)
	}
}

func onlyState(t *testing.T, d *stateDir) {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && e.Name() != "state.json" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestASecondSidecarIsToldWhoHasTheDirectory(t *testing.T) {
	path := t.TempDir()
	first := openDir(t, path)
	_, err := openStateDir(path)
	want := fmt.Sprintf("--state-dir %s: another holdfast uses it (pid %d): give each sidecar a directory of its own", path, os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	first.close()
	openDir(t, path) // the lock ends with its process, not with the file
}

func TestUnusableStateDirectoriesAreNamedWithTheRemedy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	locked := t.TempDir()
	if err := os.Chmod(locked, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path, want string
		noRoot           bool
	}{
		{"a file", file, "--state-dir " + file + ": not a directory: create it writable for this user, or set --state-dir", false},
		{"below a file", file + "/x", "--state-dir " + file + "/x: not a directory: create it writable for this user, or set --state-dir", false},
		{"cannot be made", "/proc/holdfast", "--state-dir /proc/holdfast: no such file or directory: create it writable for this user, or set --state-dir", false},
		{"not writable", locked, "--state-dir " + locked + ": permission denied: make it writable for this user, or set --state-dir", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.noRoot && os.Geteuid() == 0 {
				t.Skip("root may write everywhere")
			}
			d, err := openStateDir(c.path)
			if err == nil {
				d.close()
				t.Fatal("opened")
			}
			if err.Error() != c.want {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}

func TestAStateFileThatCannotBeReadIsNoNewSidecar(t *testing.T) {
	d := openDir(t, t.TempDir())
	if err := os.Mkdir(d.file(), 0o700); err != nil {
		t.Fatal(err)
	}
	want := "--state-dir " + d.path + ": read state.json: is a directory: make it readable for this user"
	if m, err := d.load(); err == nil || err.Error() != want {
		t.Errorf("%+v, %v; want %s", m, err, want)
	}
}
