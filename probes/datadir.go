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

	mu    sync.Mutex
	path  string
	began time.Time
}

// NewDataDir prepares the watch; nothing is touched before Run.
func NewDataDir(s DataDirSettings, log *slog.Logger, reg prometheus.Registerer) *DataDir {
	if s.Rescan <= 0 {
		s.Rescan = DefaultRescan
	}
	d := &DataDir{settings: s, log: log, changes: make(chan struct{}, 1), looks: make(chan struct{}, 1), path: absolute(s.Path),
		mode: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_datadir_watch_mode",
			Help: "How changes of the data directory are noticed: 1 for the mode in use (events from the kernel, or periodic rescan only), 0 for the other. rescan: changes are seen up to 10 s late; look at the limits of inotify.",
		}, []string{"mode"})}
	d.setMode("")
	d.view.Store(&DirView{})
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

func absolute(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}

// SetPath says where the data directory is, before or during Run. The same path
// again changes nothing; another one is looked at once.
func (d *DataDir) SetPath(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if path == d.path { // as it nearly always is
		return
	}
	if path = absolute(path); path != d.path {
		d.path = path
		signal(d.looks)
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
	h := hints{d: d}
	defer h.close()
	soon := time.NewTimer(0)
	defer soon.Stop()
	periodic := time.NewTicker(d.settings.Rescan)
	defer periodic.Stop()
	for due, last := true, time.Now(); ; {
		events, errs := h.channels()
		select {
		case <-ctx.Done():
			return nil
		case <-d.looks:
			d.scan(ctx, &h)
			last = time.Now()
			signal(d.changes)
		case <-soon.C:
			due = false
			d.scan(ctx, &h)
			last = time.Now()
		case <-periodic.C:
			d.scan(ctx, &h)
			last = time.Now()
		case e, open := <-events:
			if !open {
				h.close()
			} else if h.concerns(e) && !due {
				due = true
				soon.Reset(max(debounce, time.Until(last.Add(hintedEvery))))
			}
		case _, open := <-errs: // events were dropped, or the watch has ended
			if !open {
				h.close()
			} else if !due {
				due = true
				soon.Reset(hintedEvery)
			}
		}
	}
}

func (d *DataDir) scan(ctx context.Context, h *hints) {
	d.mu.Lock()
	path, began := d.path, d.began
	d.mu.Unlock()
	h.follow(path) // before the scan, so that nothing is missed between them
	view := scan(ctx, path, d.settings.Markers, began, scanLimit)
	if ctx.Err() != nil {
		return // cut short: it proves nothing
	}
	old := d.view.Swap(&view)
	if view.Error != "" && view.Error != old.Error && path != "" {
		d.log.Warn("data directory cannot be read in full", "path", path, "error", view.Error)
	}
	marked := view.OldestPath != ""
	if old.State != view.State || old.Identity != view.Identity || marked != (old.OldestPath != "") {
		d.log.Info("data directory changed", "path", path, "from", old.State.String(), "to", view.State.String(), "marked", marked, "identity", view.Identity)
	}
	if old.State != view.State || old.Error != view.Error || old.Identity != view.Identity || old.OldestPath != view.OldestPath || !old.OldestMarker.Equal(view.OldestMarker) {
		signal(d.changes)
	}
}

// hints are the kernel's events about the data directory and its name in its parent. Only the
// goroutine of Run uses them.
type hints struct {
	d       *DataDir
	watcher *fsnotify.Watcher // nil: rescan only
	path    string
	lastErr string
}

func (h *hints) channels() (<-chan fsnotify.Event, <-chan error) {
	if h.watcher == nil {
		return nil, nil
	}
	return h.watcher.Events, h.watcher.Errors
}

// concerns is false for other people's files in a shared parent such as /tmp, and
// for mere writes, which change neither what is there nor whose it is.
func (h *hints) concerns(e fsnotify.Event) bool {
	return e.Op != fsnotify.Write && (e.Name == h.path || filepath.Dir(e.Name) == h.path)
}

// follow asks for the events of path, anew each time: another directory may have its name.
func (h *hints) follow(path string) {
	if path != h.path {
		h.close()
		h.path = path
	}
	switch {
	case path == "":
		h.d.setMode("")
		return
	case h.d.settings.NoEvents:
		h.d.setMode(watchRescan)
		return
	}
	var err error
	for _, dir := range []string{filepath.Dir(path), path} {
		if why := h.add(dir); !absent(why) { // what is not there is looked for each time
			err = errors.Join(err, why)
		}
	}
	mode, text := watchEvents, ""
	if err != nil {
		mode, text = watchRescan, err.Error()
	}
	if h.d.setMode(mode); text != "" && text != h.lastErr {
		h.d.log.Warn("the kernel tells of no changes of the data directory, which is looked at each time: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances, or the limit of open files",
			"path", path, "every", h.d.settings.Rescan, "error", err)
	}
	h.lastErr = text
}

func (h *hints) add(dir string) error {
	if h.watcher == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return err
		}
		h.watcher = w
	}
	return h.watcher.Add(dir)
}

func (h *hints) close() {
	if h.watcher != nil {
		_ = h.watcher.Close() // waits for its goroutine; there is nothing to save
		h.watcher = nil
	}
}
