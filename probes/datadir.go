package probes

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// rescanEvery is the pause between two periodic scans, and hintedEvery the one before a scan
// that events ask for.
const rescanEvery, hintedEvery = 10 * time.Second, time.Second

// DataDir keeps a view of the broker's data directory current. Events from the kernel, about
// the directory and its name in its parent, are hints that make it look at once; a scan is
// what it believes. What changes deeper below, or where the kernel tells of nothing, shows
// within ten seconds; who decides asks for a look before.
type DataDir struct {
	markers  []string // globs relative to the path, e.g. "jetstream/*/streams/*/meta.inf"
	noEvents bool     // the kernel is not asked to tell of changes
	rescan   time.Duration
	log      *slog.Logger
	changes  chan struct{}
	looks    chan struct{}
	view     atomic.Pointer[DirView]
	watcher  *fsnotify.Watcher // of Run; nil: no events yet

	mu    sync.Mutex
	path  string // absolute
	began time.Time
}

// NewDataDir prepares the watch; nothing is touched before Run. The path may be told later.
func NewDataDir(path string, markers []string, noEvents bool, log *slog.Logger) *DataDir {
	d := &DataDir{markers: markers, noEvents: noEvents, rescan: rescanEvery, log: log, changes: make(chan struct{}, 1), looks: make(chan struct{}, 1)}
	d.view.Store(&DirView{State: DirUnknown})
	d.Expect(path, time.Time{})
	d.Look()
	return d
}

// Expect says where the data directory is, before or during Run; empty: where it was. Another
// one is looked at once. It also says when the broker's process began: from the next scan on a
// marker that is older is enough. Zero: not known.
func (d *DataDir) Expect(path string, began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = began
	if path == "" {
		return
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if path != d.path {
		d.path = path
		d.Look()
	}
}

// Look has the directory scanned now.
func (d *DataDir) Look() { Signal(d.looks) }

// Path is the absolute path that is watched; empty while it is not known.
func (d *DataDir) Path() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.path
}

// Snapshot is the directory as last scanned.
func (d *DataDir) Snapshot() DirView { return *d.view.Load() }

// Changes receives a value after each scan.
func (d *DataDir) Changes() <-chan struct{} { return d.changes }

// Run watches until ctx ends and then returns nil.
func (d *DataDir) Run(ctx context.Context) error {
	defer func() {
		if d.watcher != nil {
			_ = d.watcher.Close() // waits for its goroutine; there is nothing to save
		}
	}()
	timer, hinted := time.NewTimer(d.rescan), false // a scan that an event asks for is due
	defer timer.Stop()
	for {
		var events chan fsnotify.Event
		var errs chan error
		if d.watcher != nil {
			events, errs = d.watcher.Events, d.watcher.Errors
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.looks:
		case <-timer.C:
		case e := <-events:
			if !hinted && concerns(e, d.Path()) {
				hinted = true
				timer.Reset(hintedEvery)
			}
			continue
		case <-errs: // what was dropped shows at the next scan
			continue
		}
		d.scan(ctx)
		hinted = false
		timer.Reset(d.rescan)
	}
}

// concerns is false for other people's files in a shared parent such as /tmp, and
// for mere writes, which change neither what is there nor whose it is.
func concerns(e fsnotify.Event, path string) bool {
	return e.Op != fsnotify.Write && (e.Name == path || filepath.Dir(e.Name) == path)
}

func (d *DataDir) scan(ctx context.Context) {
	d.mu.Lock()
	path, began := d.path, d.began
	d.mu.Unlock()
	if path != "" && !d.noEvents {
		d.follow(path) // before the scan, so that nothing is missed between them
	}
	view := Scan(ctx, path, d.markers, began)
	if ctx.Err() != nil {
		return // cut short: it proves nothing
	}
	old := d.view.Swap(&view)
	if view.Error != "" && view.Error != old.Error && path != "" {
		d.log.Warn("data directory cannot be read in full", "path", path, "error", view.Error)
	}
	marked := view.OldestPath != ""
	if old.State != view.State || old.Identity != view.Identity || marked != (old.OldestPath != "") {
		d.log.Info("data directory changed", "path", path, "from", old.State, "to", view.State, "marked", marked, "identity", view.Identity)
	}
	Signal(d.changes)
}

// follow asks for the events of path and its parent, anew each time: another directory may have
// its name, and the kernel may have room by now. Where it gives none, the rescan is all.
func (d *DataDir) follow(path string) {
	if d.watcher == nil {
		d.watcher, _ = fsnotify.NewWatcher()
	}
	if d.watcher != nil {
		_ = d.watcher.Add(filepath.Dir(path))
		_ = d.watcher.Add(path)
	}
}
