package probes

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"holdfast/internal/raced"
)

// never is a rescan that no test lives to see: what it notices, events told it.
const never = time.Hour

// testDir is a DataDir with a bell that rings after each scan.
type testDir struct {
	*DataDir
	bell     chan struct{}
	scans    atomic.Int64
	standing atomic.Bool // the last scan found every watch in place
}

func dataDir(path string, rescan time.Duration) *testDir {
	return belled(NewDataDir(DataDirSettings{Path: path, Markers: streamGlob, Rescan: rescan}, quiet(), nil))
}

func belled(d *DataDir) *testDir {
	td := &testDir{DataDir: d, bell: make(chan struct{}, 1)}
	d.scanned = func(added bool) {
		td.standing.Store(!added)
		td.scans.Add(1)
		signal(td.bell)
	}
	d.again = never
	return td
}

func (d *testDir) expect(t *testing.T, what string, ok func(DirView) bool) DirView {
	t.Helper()
	until(t, d.Changes(), what, func() bool { return ok(d.Snapshot()) })
	return d.Snapshot()
}

func present(markers, generation int) func(DirView) bool {
	return func(v DirView) bool {
		return v.State == DirPresent && v.Markers == markers && v.Generation == generation
	}
}

func state(s DirState) func(DirView) bool { return func(v DirView) bool { return v.State == s } }

// settled is when the watch stands and the scan that followed it is done: from then
// on a change is seen because of an event.
func (d *testDir) settled(t *testing.T) {
	t.Helper()
	until(t, d.bell, "every watch in place", d.standing.Load)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// vanish removes a directory of base in one step. A scan in the midst of a plain
// removal rightly sees a directory that lost its content, which is one more change.
func vanish(t *testing.T, base, path string) {
	t.Helper()
	aside := filepath.Join(base, "vanished")
	rename(t, path, aside)
	remove(t, aside)
}

// The same changes, seen by events and, where inotify is exhausted, by rescan.
func TestDataDirectoryChangesAreSeen(t *testing.T) {
	tests := []struct {
		name string
		do   func(t *testing.T, d *testDir, base, path string)
	}{
		{"missing, then appears with its parents", func(t *testing.T, d *testDir, base, path string) {
			d.expect(t, "missing", state(DirMissing))
			mkdir(t, path)
			d.expect(t, "empty", present(0, 1))
			stream(t, path, "a")
			d.expect(t, "a marker", present(1, 1))
		}},
		{"markers come and go", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			stream(t, path, "b")
			d.expect(t, "two", present(2, 1))
			d.settled(t)
			stream(t, path, "c")
			d.expect(t, "three", present(3, 1))
			remove(t, filepath.Join(path, "jetstream/$G/streams/a"))
			d.expect(t, "two again", present(2, 1))
		}},
		{"wiped from within", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			d.expect(t, "a marker", present(1, 1))
			vanish(t, base, filepath.Join(path, "jetstream"))
			v := d.expect(t, "wiped", present(0, 2))
			if !v.OldestMarker.IsZero() || v.OldestPath != "" {
				t.Errorf("%+v", v)
			}
		}},
		{"removed and made anew", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			d.expect(t, "a marker", present(1, 1))
			vanish(t, base, path)
			d.expect(t, "missing", state(DirMissing))
			stream(t, path, "a")
			d.expect(t, "another directory", present(1, 2))
		}},
		{"moved away and back is the same directory", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			d.expect(t, "a marker", present(1, 1))
			rename(t, path, path+".away")
			d.expect(t, "missing", state(DirMissing))
			rename(t, path+".away", path)
			d.expect(t, "the same again", present(1, 1))
			d.settled(t)
			stream(t, path, "b") // the watch came back, too
			d.expect(t, "a marker in it", present(2, 1))
		}},
		{"replaced by rename", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			stream(t, filepath.Join(base, "next"), "b")
			stream(t, filepath.Join(base, "next"), "c")
			d.expect(t, "a marker", present(1, 1))
			d.settled(t)
			rename(t, path, path+".old")
			rename(t, filepath.Join(base, "next"), path)
			d.expect(t, "the other directory", present(2, 2))
		}},
		{"replaced by symlink swap", func(t *testing.T, d *testDir, base, path string) {
			one, two := filepath.Join(base, "one"), filepath.Join(base, "two")
			stream(t, one, "a")
			stream(t, two, "a")
			mkdir(t, filepath.Dir(path))
			link := func(target string) {
				if err := os.Symlink(target, path+".new"); err != nil {
					t.Fatal(err)
				}
				rename(t, path+".new", path)
			}
			link(one)
			d.expect(t, "the first", present(1, 1))
			d.settled(t)
			link(two)
			d.expect(t, "the second", present(1, 2))
			d.settled(t)
			stream(t, two, "b") // the watch has moved along
			d.expect(t, "a marker in the second", present(2, 2))
		}},
		{"a link further up the path is swapped", func(t *testing.T, d *testDir, base, path string) {
			name := filepath.Base(path)
			stream(t, filepath.Join(base, "v1", name), "a")
			stream(t, filepath.Join(base, "v2", name), "a")
			stream(t, filepath.Join(base, "v2", name), "b")
			parent := filepath.Dir(path)
			if err := os.Symlink("v1", parent); err != nil {
				t.Fatal(err)
			}
			d.expect(t, "v1", present(1, 1))
			d.settled(t)
			if err := os.Symlink("v2", parent+".new"); err != nil {
				t.Fatal(err)
			}
			rename(t, parent+".new", parent)
			d.expect(t, "v2", present(2, 2))
		}},
		{"a file takes its place", func(t *testing.T, d *testDir, base, path string) {
			stream(t, path, "a")
			d.expect(t, "a marker", present(1, 1))
			vanish(t, base, path)
			touch(t, path)
			v := d.expect(t, "unreadable", state(DirUnreadable))
			if v.Error != path+": not a directory" || v.Generation != 1 {
				t.Errorf("%+v", v)
			}
		}},
	}
	for _, tt := range tests {
		for _, mode := range []string{watchEvents, watchRescan} {
			t.Run(tt.name+", by "+mode, func(t *testing.T) {
				base := t.TempDir()
				path := filepath.Join(base, "parent", "data")
				d := dataDir(path, never)
				if mode == watchRescan {
					d = dataDir(path, 20*time.Millisecond)
					d.newWatcher = func() (*fsnotify.Watcher, error) { return nil, unix.EMFILE }
				}
				runIt(t, d.Run)
				d.expect(t, "the first scan", func(v DirView) bool { return v.Watch == mode })
				d.settled(t)
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
	d.expect(t, "a marker", present(1, 1))
	d.settled(t)
	for path, message := range map[string]string{
		path: path + ": permission denied",
		filepath.Join(path, "jetstream/$G/streams"): path + "/jetstream/$G/streams: permission denied",
	} {
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		v := d.expect(t, "unreadable", state(DirUnreadable))
		if v.Error != message || v.Generation != 1 {
			t.Errorf("%+v", v)
		}
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
		d.expect(t, "readable again, and the same", present(1, 1))
	}
}

func TestPathMayBeToldLater(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	stream(t, first, "a")
	stream(t, second, "a")
	stream(t, second, "b")
	d := dataDir("", never)
	if v := d.Snapshot(); v.State != DirUnknown || d.Path() != "" {
		t.Fatalf("%+v", v)
	}
	runIt(t, d.Run)
	d.expect(t, "the reason", func(v DirView) bool { return v.State == DirUnknown && v.Error != "" })
	d.SetPath(first)
	d.expect(t, "the first", present(1, 1))
	d.SetPath(first)
	d.settled(t)
	d.SetPath(second)
	d.expect(t, "the second", present(2, 2))
	d.settled(t)
	stream(t, second, "c")
	d.expect(t, "a marker in the second", present(3, 2))
	if d.Path() != second {
		t.Errorf("path %s", d.Path())
	}
}

func TestOverflowIsCountedAndAnsweredByARescan(t *testing.T) {
	path := t.TempDir()
	stream(t, path, "a")
	reg := prometheus.NewPedanticRegistry()
	d := belled(NewDataDir(DataDirSettings{Path: path, Markers: streamGlob, Rescan: never}, quiet(), reg))
	var watcher *fsnotify.Watcher
	d.newWatcher = func() (w *fsnotify.Watcher, err error) {
		watcher, err = fsnotify.NewWatcher()
		return watcher, err
	}
	// No event arrives, as if the kernel had dropped them all: nothing is watched.
	d.addWatch = func(*fsnotify.Watcher, string) error { return fs.ErrPermission }
	runIt(t, d.Run)
	d.expect(t, "a marker", present(1, 1))
	d.settled(t)
	stream(t, path, "b")
	select {
	case watcher.Errors <- fsnotify.ErrEventOverflow:
	case <-time.After(patience):
		t.Fatal("nobody reads the watcher's errors")
	}
	d.expect(t, "the marker whose event was dropped", present(2, 1))
	if n := testutil.ToFloat64(d.metrics.overflows); n != 1 {
		t.Errorf("%v overflows counted", n)
	}
}

func TestExhaustedInotifyFallsBackToRescanAndIsTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(d *testDir, refuse func() bool){
		"no watcher to be had (EMFILE)": func(d *testDir, refuse func() bool) {
			d.newWatcher = func() (*fsnotify.Watcher, error) {
				if refuse() {
					return nil, os.NewSyscallError("inotify_init1", unix.EMFILE)
				}
				return fsnotify.NewWatcher()
			}
		},
		"no watch to be had (ENOSPC)": func(d *testDir, refuse func() bool) {
			d.addWatch = func(w *fsnotify.Watcher, dir string) error {
				if strings.HasSuffix(dir, "streams") && refuse() {
					return unix.ENOSPC
				}
				return w.Add(dir)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			stream(t, path, "a")
			reg := prometheus.NewPedanticRegistry()
			d := belled(NewDataDir(DataDirSettings{Path: path, Markers: streamGlob, Rescan: 20 * time.Millisecond}, quiet(), reg))
			attempts, enough := 0, make(chan struct{})
			fail(d, func() bool { // called by Run's goroutine only
				if attempts++; attempts == 3 {
					close(enough)
				}
				return attempts <= 5
			})
			modes := func(events, rescan string) string {
				return "# HELP holdfast_datadir_watch_mode How changes of the data directory are noticed: 1 for the mode in use (events from the kernel, or periodic rescan only), 0 for the other. rescan: changes are seen up to 10 s late; look at the limits of inotify.\n" +
					"# TYPE holdfast_datadir_watch_mode gauge\n" +
					"holdfast_datadir_watch_mode{mode=\"events\"} " + events + "\nholdfast_datadir_watch_mode{mode=\"rescan\"} " + rescan + "\n"
			}
			compare := func(want string) {
				t.Helper()
				if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "holdfast_datadir_watch_mode"); err != nil {
					t.Error(err)
				}
			}
			compare(modes("0", "0"))
			runIt(t, d.Run)
			d.expect(t, "rescan", func(v DirView) bool { return v.Watch == watchRescan && v.Markers == 1 })
			<-enough
			d.expect(t, "events again", func(v DirView) bool { return v.Watch == watchEvents })
			compare(modes("1", "0"))
			if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
				t.Errorf("lint: %v %v", problems, err)
			}
		})
	}
}

func TestTenThousandStreamsNeedLittleMemoryAndFewWatches(t *testing.T) {
	if raced.Enabled {
		t.Skip("too slow with the race detector, which sees the same code in other tests")
	}
	path := t.TempDir()
	for i := range 10_000 {
		account := "big"
		if i < 100 {
			account = fmt.Sprintf("acc%02d", i)
		}
		touch(t, path, "jetstream", account, "streams", fmt.Sprintf("s%05d", i), "meta.inf")
	}
	start := time.Now()
	checkScanIsSmall(t, path, 10_000)
	took := time.Since(start)

	d := dataDir(path, never)
	var watchers []*fsnotify.Watcher
	most := 0
	d.addWatch = func(w *fsnotify.Watcher, dir string) error {
		watchers = append(watchers, w)
		err := w.Add(dir)
		most = max(most, len(w.WatchList()))
		return err
	}
	stop := runIt(t, d.Run)
	d.expect(t, "all markers", present(10_000, 1))
	d.settled(t)
	stream(t, path, "new") // a new account, seen through the watched first level
	// A scan that events ask for waits until the share of a core allows it, which a busy
	// machine with a slow disk, and the race detector, put off.
	untilWithin(t, patience+4*scanShare*took, d.Changes(), "one more", func() bool { return present(10_001, 1)(d.Snapshot()) })
	stop()
	if most > maxWatches {
		t.Errorf("%d watches", most)
	}
	if n := len(watchers[0].WatchList()); n != 0 {
		t.Errorf("%d watches after Run", n)
	}
}

// checkScanIsSmall requires that a scan keeps nothing a stream.
func checkScanIsSmall(t *testing.T, path string, markers int) {
	t.Helper()
	var before, kept runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	v, found := scan(context.Background(), path, streamGlob)
	runtime.GC()
	runtime.ReadMemStats(&kept)
	if v.State != DirPresent || v.Markers != markers || len(found.expand) > maxWatches {
		t.Fatalf("%+v, %d directories to watch", v, len(found.expand))
	}
	if grew := int64(kept.HeapAlloc) - int64(before.HeapAlloc); grew > 256<<10 {
		t.Errorf("%d bytes are kept after a scan", grew)
	}
}

func TestMarkerThatFollowsItsDirectoryLateIsSeen(t *testing.T) {
	path := t.TempDir()
	stream(t, path, "a")
	d := dataDir(path, never)
	d.again = afterthought
	runIt(t, d.Run)
	d.settled(t)
	before := d.scans.Load()
	mkdir(t, path, "jetstream", "$G", "streams", "b")
	until(t, d.bell, "a scan because of the directory", func() bool { return d.scans.Load() > before })
	stream(t, path, "b")
	d.expect(t, "the marker, by the afterthought", present(2, 1))
}

func TestDirectoryUnderTwoNamesIsWatchedOnce(t *testing.T) {
	path := t.TempDir()
	stream(t, path, "a")
	if err := os.Symlink("$G", filepath.Join(path, "jetstream", "alias")); err != nil {
		t.Fatal(err)
	}
	d := dataDir(path, never)
	runIt(t, d.Run)
	d.expect(t, "the marker under both names", present(2, 1))
	d.settled(t) // and no scan asks for the next one for ever
	stream(t, path, "b")
	d.expect(t, "the new one under both names", present(4, 1))
}

func TestOtherPeoplesFilesNextToTheDirectoryCauseNoScan(t *testing.T) {
	base := t.TempDir()
	path := mkdir(t, base, "data")
	stream(t, path, "a")
	w := newDirWatch(dataDir(path, never).DataDir)
	if !w.sync(path, []string{path}) {
		t.Fatal("no watch was added")
	}
	defer w.close("")
	for _, tt := range []struct {
		event fsnotify.Event
		want  bool
	}{
		{fsnotify.Event{Name: filepath.Join(base, "other"), Op: fsnotify.Create}, false},
		{fsnotify.Event{Name: path, Op: fsnotify.Create}, true},
		{fsnotify.Event{Name: path, Op: fsnotify.Chmod}, true},
		{fsnotify.Event{Name: base, Op: fsnotify.Remove}, true},
		{fsnotify.Event{Name: filepath.Join(path, "x"), Op: fsnotify.Create}, true},
		{fsnotify.Event{Name: filepath.Join(path, "x"), Op: fsnotify.Write}, false},
		{fsnotify.Event{Name: filepath.Join(path, "x", "y"), Op: fsnotify.Create}, false},
	} {
		if got := w.concerns(tt.event); got != tt.want {
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
		d.expect(t, "a marker", present(1, 1))
		stop()
	}
	noMoreGoroutinesThan(t, before)
}
