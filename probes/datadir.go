package probes

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	// DefaultRescan is the pause between two periodic scans.
	DefaultRescan = 10 * time.Second
	// debounce gathers the events of one change into one scan, and hintedEvery is the least
	// pause between two scans that events ask for.
	debounce, hintedEvery = 50 * time.Millisecond, time.Second

	watchEvents = "events"
	watchRescan = "rescan"
)

// DataDirSettings say what to watch.
type DataDirSettings struct {
	Path    string        // empty: told later by SetPath
	Markers []string      // globs relative to Path, e.g. "jetstream/*/streams/*/meta.inf"
	Rescan  time.Duration // between periodic scans; not positive: DefaultRescan
	// NoEvents: the kernel is not asked to tell of changes.
	NoEvents bool
}

// DataDir keeps a view of the broker's data directory current. Events from the kernel, about
// the directory and its name in its parent, are hints that make it look at once; a scan is
// what it believes. What changes deeper below shows within Rescan; who decides asks for a
// look before.
type DataDir struct {
	settings DataDirSettings
	log      *slog.Logger
	mode     *prometheus.GaugeVec
	changes  chan struct{}
	looks    chan struct{} // another path was told, or Look was called
	view     atomic.Pointer[DirView]

	// of Run
	watcher *fsnotify.Watcher // nil: no events yet
	refused string            // why there are none

	mu    sync.Mutex
	path  string
	began time.Time
}

// NewDataDir prepares the watch; nothing is touched before Run.
func NewDataDir(s DataDirSettings, log *slog.Logger, reg prometheus.Registerer) *DataDir {
	if s.Rescan <= 0 {
		s.Rescan = DefaultRescan
	}
	d := &DataDir{settings: s, log: log, changes: make(chan struct{}, 1), looks: make(chan struct{}, 1),
		mode: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_datadir_watch_mode",
			Help: "How changes of the data directory are noticed: 1 for the mode in use (events from the kernel, or periodic rescan only), 0 for the other. rescan: changes are seen up to 10 s late; look at the limits of inotify.",
		}, []string{"mode"})}
	d.setMode("")
	d.view.Store(&DirView{State: DirUnknown})
	d.SetPath(s.Path)
	d.Look()
	return d
}

func (d *DataDir) setMode(mode string) {
	for _, known := range []string{watchEvents, watchRescan} {
		value := 0.0
		if known == mode {
			value = 1
		}
		d.mode.WithLabelValues(known).Set(value)
	}
}

// SetPath says where the data directory is, before or during Run. The same path
// again changes nothing; another one is looked at once.
func (d *DataDir) SetPath(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		path = abs
	}
	if path != d.path {
		d.path = path
		d.Look()
	}
}

// Began says when the broker's process began, from the next scan on: a marker that is older
// is enough. Zero: not known.
func (d *DataDir) Began(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began = at
}

// Look has the directory scanned now. Changes receives a value after that, whatever it found.
func (d *DataDir) Look() { signal(d.looks) }

// Path is the absolute path that is watched; empty while it is not known.
func (d *DataDir) Path() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.path
}

// Snapshot is the directory as last scanned.
func (d *DataDir) Snapshot() DirView { return *d.view.Load() }

// Changes receives a value after the view changed in anything but ScannedAt, and after Look.
func (d *DataDir) Changes() <-chan struct{} { return d.changes }

// Run watches until ctx ends and then returns nil.
func (d *DataDir) Run(ctx context.Context) error {
	defer func() {
		if d.watcher != nil {
			_ = d.watcher.Close() // waits for its goroutine; there is nothing to save
		}
	}()
	timer := time.NewTimer(d.settings.Rescan)
	defer timer.Stop()
	hinted, last := false, time.Now() // a scan that an event asks for is due
	for {
		var events chan fsnotify.Event
		var errs chan error
		if d.watcher != nil {
			events, errs = d.watcher.Events, d.watcher.Errors
		}
		looked, hint := false, false
		select {
		case <-ctx.Done():
			return nil
		case <-d.looks:
			looked = true
		case <-timer.C:
		case e, open := <-events:
			hint = !open || concerns(e, d.Path())
			if !open { // and the next scan makes another
				d.watcher = nil
			}
			if !hint {
				continue
			}
		case <-errs: // events were dropped
			hint = true
		}
		if hint {
			if !hinted {
				hinted = true
				timer.Reset(max(debounce, time.Until(last.Add(hintedEvery))))
			}
			continue
		}
		d.scan(ctx)
		if looked {
			signal(d.changes)
		}
		hinted, last = false, time.Now()
		timer.Reset(d.settings.Rescan)
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
	d.follow(path) // before the scan, so that nothing is missed between them
	view := scan(ctx, path, d.settings.Markers, began, scanLimit)
	if ctx.Err() != nil {
		return // cut short: it proves nothing
	}
	old := *d.view.Swap(&view)
	if view.Error != "" && view.Error != old.Error && path != "" {
		d.log.Warn("data directory cannot be read in full", "path", path, "error", view.Error)
	}
	marked := view.OldestPath != ""
	if old.State != view.State || old.Identity != view.Identity || marked != (old.OldestPath != "") {
		d.log.Info("data directory changed", "path", path, "from", old.State, "to", view.State, "marked", marked, "identity", view.Identity)
	}
	if old.ScannedAt = view.ScannedAt; old != view {
		signal(d.changes)
	}
}

// follow asks for the events of path and its parent, anew each time: another directory may have
// its name.
func (d *DataDir) follow(path string) {
	mode := watchRescan
	switch {
	case path == "":
		mode = ""
	case !d.settings.NoEvents:
		err := d.ask(filepath.Dir(path), path)
		if err == nil {
			mode, d.refused = watchEvents, ""
		} else if err.Error() != d.refused {
			d.refused = err.Error()
			d.log.Warn("the kernel tells of no changes of the data directory, which is looked at each time: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances, or the limit of open files",
				"path", path, "every", d.settings.Rescan, "error", err)
		}
	}
	d.setMode(mode)
}

func (d *DataDir) ask(dirs ...string) (err error) {
	if d.watcher == nil {
		if d.watcher, err = fsnotify.NewWatcher(); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if why := d.watcher.Add(dir); !absent(why) { // what is not there is looked for each time
			err = errors.Join(err, why)
		}
	}
	return err
}
