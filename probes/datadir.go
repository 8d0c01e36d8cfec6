package probes

import (
	"context"
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
	// debounce gathers the events of one change into one scan.
	debounce = 50 * time.Millisecond
	// afterthought is when, after a scan that events asked for, one more follows: a
	// broker makes a stream's directory first, which we see, and its marker later,
	// in a directory that is not watched.
	afterthought = time.Second
	// scanShare bounds what event-driven scans may cost: after a scan that took d,
	// the next one waits at least scanShare × d, so they use at most 5 % of a core.
	scanShare = 19

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

// DataDir keeps a view of the broker's data directory current. Events from the
// kernel are hints that make it look at once; a scan is what it believes.
//
// With events a change shows within about 0.1 s. Without them, and for the changes
// that no watch covers, within Rescan: a marker that is written into a stream's
// directory more than a second after that directory was made, a renamed directory
// further up the path than the parent, and whatever is beyond the first 64
// directories to watch.
type DataDir struct {
	settings DataDirSettings
	log      *slog.Logger
	metrics  dataDirMetrics
	changes  chan struct{}
	moved    chan struct{} // SetPath or Look was called
	view     atomic.Pointer[DirView]

	mu   sync.Mutex
	path string

	// The doors to inotify, so that tests can close them, the afterthought, so that
	// they can do without, and a bell after each scan, which says whether that scan
	// added watches, so that one more follows.
	newWatcher func() (*fsnotify.Watcher, error)
	addWatch   func(w *fsnotify.Watcher, dir string) error
	scanned    func(added bool)
	again      time.Duration
}

type dataDirMetrics struct {
	mode      *prometheus.GaugeVec
	overflows prometheus.Counter
}

func newDataDirMetrics(reg prometheus.Registerer) dataDirMetrics {
	f := promauto.With(reg)
	m := dataDirMetrics{
		mode: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_datadir_watch_mode",
			Help: "How changes of the data directory are noticed: 1 for the mode in use (events from the kernel, or periodic rescan only), 0 for the other. rescan: changes are seen up to 10 s late; look at the limits of inotify.",
		}, []string{"mode"}),
		overflows: f.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_datadir_watch_overflows_total",
			Help: "Times the kernel dropped events about the data directory, each answered by a full rescan. Growing: fs.inotify.max_queued_events is too small, or something else writes there.",
		}),
	}
	m.set("")
	return m
}

func (m dataDirMetrics) set(mode string) {
	for _, known := range []string{watchEvents, watchRescan} {
		value := 0.0
		if known == mode {
			value = 1
		}
		m.mode.WithLabelValues(known).Set(value)
	}
}

// NewDataDir prepares the watch; nothing is touched before Run.
func NewDataDir(s DataDirSettings, log *slog.Logger, reg prometheus.Registerer) *DataDir {
	if s.Rescan <= 0 {
		s.Rescan = DefaultRescan
	}
	d := &DataDir{
		settings:   s,
		log:        log,
		metrics:    newDataDirMetrics(reg),
		changes:    make(chan struct{}, 1),
		moved:      make(chan struct{}, 1),
		path:       absolute(s.Path),
		newWatcher: fsnotify.NewWatcher,
		addWatch:   func(w *fsnotify.Watcher, dir string) error { return w.Add(dir) },
		scanned:    func(bool) {},
		again:      afterthought,
	}
	d.view.Store(&DirView{})
	return d
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
		signal(d.moved)
	}
}

// Look has the directory scanned now. Changes receives a value after that, whatever it found.
func (d *DataDir) Look() { signal(d.moved) }

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
	r := &dirRun{d: d, ctx: ctx, watch: newDirWatch(d), soon: time.NewTimer(0)}
	defer r.watch.close("")
	defer r.soon.Stop()
	periodic := time.NewTicker(d.settings.Rescan)
	defer periodic.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.moved:
			r.scan()
			signal(d.changes)
		case <-r.soon.C:
			r.scan()
		case <-periodic.C:
			r.watch.retry = true
			r.scan()
		case event, open := <-r.watch.events():
			switch {
			case !open:
				r.watch.giveUp(errWatcherEnded)
			case r.watch.concerns(event):
				r.scanSoon()
			}
		case err, open := <-r.watch.errors():
			if !open {
				r.watch.giveUp(errWatcherEnded)
			} else {
				r.onWatchError(err)
			}
		}
	}
}

// dirRun is what only Run's goroutine touches.
type dirRun struct {
	d        *DataDir
	ctx      context.Context
	watch    *dirWatch
	soon     *time.Timer
	due      time.Time // when soon fires; zero while it is not set
	hinted   bool      // events came since the last scan
	lastCost time.Duration
	lastEnd  time.Time

	known    bool // a directory was seen; the rest describes it
	path     string
	ids      map[string]dirID
	markers  int
	entries  bool
	lastFail string
}

// scanSoon makes a scan due after the debounce. Further events do not push it away.
func (r *dirRun) scanSoon() {
	r.hinted = true
	r.scanIn(debounce)
}

// scanIn makes a scan due in d, later if the last one was expensive, and never later
// than the next periodic one would be.
func (r *dirRun) scanIn(d time.Duration) {
	rest := scanShare*r.lastCost - time.Since(r.lastEnd)
	d = min(max(d, rest), r.d.settings.Rescan)
	due := time.Now().Add(d)
	if !r.due.IsZero() && !due.Before(r.due) {
		return
	}
	r.due = due
	r.soon.Reset(d)
}

func (r *dirRun) onWatchError(err error) {
	if isOverflow(err) {
		r.d.metrics.overflows.Inc()
		r.d.log.Warn("the kernel dropped events about the data directory: rescanning", "path", r.d.Path())
	} else {
		r.d.log.Warn("data directory watch failed: rescanning", "path", r.d.Path(), "error", err)
	}
	r.scanSoon()
}

func (r *dirRun) scan() {
	r.soon.Stop()
	r.due = time.Time{}
	path := r.d.Path()
	start := time.Now()
	view, found := scan(r.ctx, path, r.d.settings.Markers)
	if r.ctx.Err() != nil {
		return // cut short: it proves nothing
	}
	r.lastEnd = time.Now()
	r.lastCost = r.lastEnd.Sub(start)

	old := r.d.Snapshot()
	view.Generation = old.Generation
	if view.State == DirPresent {
		if !r.known || r.replaced(path, view, found) {
			view.Generation++
		}
		r.known, r.path, r.ids = true, path, found.ids
		r.markers, r.entries = view.Markers, found.entries
	}
	if r.hinted {
		r.hinted = false
		r.scanIn(r.d.again)
	}
	// A watch that was set only now missed what happened between scan and watch.
	added := r.watch.sync(path, found.expand)
	if added {
		r.scanSoon()
	}
	view.Watch = r.watch.mode
	r.d.scanned(added)
	r.publish(old, view, path)
}

// replaced compares with the directory that was last seen: another one, one whose
// fixed subdirectory was made anew, or one that lost all its markers or entries.
func (r *dirRun) replaced(path string, view DirView, found findings) bool {
	if path != r.path {
		return found.ids[path] != r.ids[r.path]
	}
	for dir, id := range found.ids {
		if before, ok := r.ids[dir]; ok && before != id {
			return true
		}
	}
	return (r.markers > 0 && view.Markers == 0) || (r.entries && !found.entries)
}

func (r *dirRun) publish(old, view DirView, path string) {
	r.d.view.Store(&view)
	if view.Error != r.lastFail {
		r.lastFail = view.Error
		if view.Error != "" && path != "" {
			r.d.log.Warn("data directory cannot be read in full", "path", path, "error", view.Error)
		}
	}
	if old.State != view.State || old.Generation != view.Generation {
		r.d.log.Info("data directory changed", "path", path, "from", old.State.String(), "to", view.State.String(),
			"markers", view.Markers, "generation", view.Generation)
	}
	old.ScannedAt = view.ScannedAt
	if !old.OldestMarker.Equal(view.OldestMarker) {
		signal(r.d.changes)
		return
	}
	if old.OldestMarker = view.OldestMarker; old != view {
		signal(r.d.changes)
	}
}
