package probes

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// never is a rescan that no test lives to see: what it notices, events told it.
const never = time.Hour

func dataDir(path string, rescan time.Duration) *DataDir {
	d := NewDataDir(path, streamGlob, false, quiet())
	d.rescan = rescan
	return d
}

func (d *DataDir) expect(t *testing.T, what string, ok func(DirView) bool) DirView {
	t.Helper()
	until(t, d.Changes(), what, func() bool { return ok(d.Snapshot()) })
	return d.Snapshot()
}

func marked(v DirView) bool { return v.State == DirPresent && v.OldestPath != "" }
func empty(v DirView) bool  { return v.State == DirPresent && v.OldestPath == "" }

func state(s DirState) func(DirView) bool { return func(v DirView) bool { return v.State == s } }

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// The same changes, seen by events and, where the kernel tells nothing, by rescan.
func TestDataDirectoryChangesAreSeen(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, d *DataDir, base, path string)
	}{
		{"missing, then there, then emptied", func(t *testing.T, d *DataDir, base, path string) {
			d.expect(t, "missing", state(DirMissing))
			ready := mkdir(t, base, "ready")
			stream(t, ready, "a")
			rename(t, ready, path)
			d.expect(t, "a marker", marked)
			rename(t, filepath.Join(path, "jetstream"), filepath.Join(base, "wiped"))
			d.expect(t, "wiped", empty)
		}},
		{"removed, and another in its place", func(t *testing.T, d *DataDir, base, path string) {
			mkdir(t, path, "jetstream")
			first := d.expect(t, "the first", state(DirPresent)).Identity
			rename(t, path, filepath.Join(base, "aside"))
			d.expect(t, "missing", state(DirMissing))
			mkdir(t, path, "jetstream")
			if second := d.expect(t, "the second", state(DirPresent)).Identity; first != "" && second == first {
				t.Errorf("%s also for another directory", second)
			}
		}},
		{"a link that is exchanged", func(t *testing.T, d *DataDir, base, path string) {
			old, fresh := mkdir(t, base, "old"), mkdir(t, base, "fresh")
			stream(t, old, "a")
			if err := os.Symlink(old, path); err != nil {
				t.Fatal(err)
			}
			d.expect(t, "a marker", marked)
			if err := os.Symlink(fresh, path+".new"); err != nil {
				t.Fatal(err)
			}
			rename(t, path+".new", path)
			d.expect(t, "the other's", empty)
		}},
	}
	for mode, rescan := range map[string]time.Duration{"events": never, "rescan": 20 * time.Millisecond} {
		for _, tt := range tests {
			t.Run(mode+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				base := t.TempDir()
				path := filepath.Join(base, "data")
				d := dataDir(path, rescan)
				d.noEvents = mode == "rescan"
				runIt(t, d.Run)
				d.expect(t, "the first look", func(v DirView) bool { return v.State != DirUnknown })
				tt.do(t, d, base, path)
			})
		}
	}
}

func TestUnreadableDirectoryIsNotMissingAndComesBack(t *testing.T) {
	path := publicDir(t)
	stream(t, path, "a")
	d := dataDir(path, never)
	runIt(t, func(ctx context.Context) (err error) {
		unprivileged(t, func() { err = d.Run(ctx) })
		return err
	})
	d.expect(t, "a marker", marked)
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if v := d.expect(t, "unreadable", state(DirUnreadable)); v.Error != path+": permission denied" {
		t.Errorf("%+v", v)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d.expect(t, "readable again", marked)
}

func TestPathMayBeToldLater(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	stream(t, first, "a")
	d := dataDir("", never)
	if v := d.Snapshot(); v.State != DirUnknown || d.Path() != "" {
		t.Fatalf("%+v", v)
	}
	runIt(t, d.Run)
	d.expect(t, "the reason", func(v DirView) bool { return v.State == DirUnknown && v.Error != "" })
	d.Expect(first, time.Time{})
	d.expect(t, "the first", marked)
	d.Expect(second, time.Time{})
	d.expect(t, "the second", empty)
	mkdir(t, second, "jetstream")
	whole := d.Snapshot().Identity
	d.expect(t, "an event in the second", func(v DirView) bool { return whole == "" || v.Identity != whole })
	if d.Path() != second {
		t.Errorf("path %s", d.Path())
	}
}

func TestOtherPeoplesFilesNextToTheDirectoryCauseNoScan(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "data")
	for _, tt := range []struct {
		event fsnotify.Event
		want  bool
	}{
		{fsnotify.Event{Name: filepath.Join(base, "other"), Op: fsnotify.Create}, false},
		{fsnotify.Event{Name: path, Op: fsnotify.Create}, true},
		{fsnotify.Event{Name: path, Op: fsnotify.Chmod}, true},
		{fsnotify.Event{Name: filepath.Join(path, "x"), Op: fsnotify.Create}, true},
		{fsnotify.Event{Name: filepath.Join(path, "x"), Op: fsnotify.Write}, false},
		{fsnotify.Event{Name: filepath.Join(path, "x", "y"), Op: fsnotify.Create}, false},
	} {
		if got := concerns(tt.event, path); got != tt.want {
			t.Errorf("%v: %v", tt.event, got)
		}
	}
}

func TestDataDirLeavesNothingBehind(t *testing.T) {
	path := t.TempDir()
	stream(t, path, "a")
	before := runtime.NumGoroutine()
	for range 10 {
		d := dataDir(path, never)
		stop := runIt(t, d.Run)
		d.expect(t, "a marker", marked)
		stop()
	}
	noMoreGoroutinesThan(t, before)
}
