package probes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

const (
	// maxWatches bounds the inotify watches of one sidecar: they are a limited good
	// of the whole host, and of the user.
	maxWatches = 64
	// maxLinks is where the kernel, too, stops to follow symlinks.
	maxLinks = 40
)

// errWatcherEnded is the cause when the event reader of fsnotify gave up by itself.
var errWatcherEnded = errors.New("the kernel's event queue was closed")

func isOverflow(err error) bool { return errors.Is(err, fsnotify.ErrEventOverflow) }

// dirWatch keeps the set of watched directories in line with what a scan found.
// Only the goroutine of DataDir.Run uses it.
type dirWatch struct {
	d       *DataDir
	watcher *fsnotify.Watcher // nil: rescan only
	watched map[string]dirID
	names   map[string]bool // watched parents, and the entries in them that concern us
	inside  map[string]bool // watched directories every entry of which concerns us
	mode    string
	retry   bool // events may be tried again after they failed
	lastErr string
}

func newDirWatch(d *DataDir) *dirWatch {
	return &dirWatch{d: d, retry: true, watched: make(map[string]dirID)}
}

func (w *dirWatch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *dirWatch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

// concerns is false for other people's files in a shared parent such as /tmp, and
// for mere writes, which change neither what is there nor whose it is.
func (w *dirWatch) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Write {
		return false
	}
	return w.names[e.Name] || w.inside[e.Name] || w.inside[filepath.Dir(e.Name)]
}

// sync watches the parents and links of path, and the directories inside. It reports
// whether a watch was added. If inotify refuses, everything is given back and only
// the rescan remains, until a periodic scan sets retry.
func (w *dirWatch) sync(path string, inside []string) (added bool) {
	if path == "" {
		w.close("")
		return false
	}
	if w.d.settings.NoEvents {
		w.close(watchRescan)
		return false
	}
	if w.watcher == nil {
		if !w.retry && w.mode == watchRescan {
			return false
		}
		watcher, err := w.d.newWatcher()
		if err != nil {
			w.giveUp(err)
			return false
		}
		w.watcher = watcher
	}
	w.retry = false
	want := w.plan(path, inside)
	w.drop(want)
	names := make(map[dirID]string, len(want)) // inotify watches an inode once, under one name
	for dir, id := range w.watched {
		names[id] = dir
	}
	for _, dir := range want {
		if _, ok := w.watched[dir]; ok {
			continue
		}
		id, err := identify(dir)
		if other, ok := names[id]; ok && err == nil {
			w.inside[other] = w.inside[other] || w.inside[dir]
			continue
		}
		if err == nil {
			err = w.d.addWatch(w.watcher, dir)
		}
		switch {
		case err == nil:
			w.watched[dir], names[id] = id, dir
			added = true
		case absent(err), errors.Is(err, fs.ErrPermission):
			// Gone again, or not ours to read: its parent's events and the rescan remain.
		default:
			w.giveUp(err)
			return false
		}
	}
	w.setMode(watchEvents)
	w.lastErr = ""
	return added
}

// plan lists what to watch, most telling first, and notes which events count.
func (w *dirWatch) plan(path string, inside []string) []string {
	parents, names := chain(path)
	w.names, w.inside = names, make(map[string]bool, len(inside))
	seen := make(map[string]bool)
	var want []string
	add := func(dir string) {
		if !seen[dir] && len(want) < maxWatches {
			seen[dir] = true
			want = append(want, dir)
		}
	}
	for _, dir := range parents {
		add(dir)
	}
	for _, dir := range inside {
		w.inside[dir] = true
		add(dir)
	}
	return want
}

// drop removes watches that are not wanted any more, that the kernel removed, or
// that belong to a directory which is not the one of that name any more.
func (w *dirWatch) drop(want []string) {
	wanted := make(map[string]bool, len(want))
	for _, dir := range want {
		wanted[dir] = true
	}
	alive := make(map[string]bool)
	for _, dir := range w.watcher.WatchList() {
		alive[dir] = true
	}
	for dir, id := range w.watched {
		now, err := identify(dir)
		if wanted[dir] && alive[dir] && err == nil && now == id {
			continue
		}
		delete(w.watched, dir)
		if alive[dir] {
			_ = w.watcher.Remove(dir) // the kernel may have been faster
		}
	}
}

// giveUp falls back to the rescan, and says so once for each cause.
func (w *dirWatch) giveUp(err error) {
	w.close(watchRescan)
	w.retry = false
	if text := reason(err); text != w.lastErr {
		w.lastErr = text
		w.d.log.Warn("data directory is watched by rescan only: raise fs.inotify.max_user_watches and fs.inotify.max_user_instances, or the limit of open files",
			"rescan", w.d.settings.Rescan, "error", err)
	}
}

// close gives every watch back. mode is what the view shows from now on.
func (w *dirWatch) close(mode string) {
	if w.watcher != nil {
		_ = w.watcher.Close() // waits for its goroutine; there is nothing to save
		w.watcher = nil
	}
	clear(w.watched)
	w.setMode(mode)
}

func (w *dirWatch) setMode(mode string) {
	if mode == w.mode {
		return
	}
	if w.mode == watchRescan && mode == watchEvents {
		w.d.log.Info("data directory is watched by events again")
	}
	w.mode = mode
	w.d.metrics.set(mode)
}

// chain follows path through its symlinks. It returns the directories in which
// something decides where path leads: the parent of each link, the parent of the
// end, or, when a part is missing, the nearest directory that is there. names are
// those directories and the entries in them that matter.
func chain(path string) (parents []string, names map[string]bool) {
	names = make(map[string]bool)
	cur, rest := "/", strings.Split(strings.Trim(path, "/"), "/")
	note := func(name string) {
		parents = append(parents, cur)
		names[name], names[cur] = true, true // cur: its own end or change of rights
	}
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			cur = filepath.Dir(cur)
			continue
		}
		full := filepath.Join(cur, part)
		info, err := os.Lstat(full)
		if err != nil {
			note(full)
			return parents, names
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			links++
			note(full)
			target, err := os.Readlink(full)
			if err != nil {
				return parents, names
			}
			if filepath.IsAbs(target) {
				cur = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		}
		if len(rest) == 0 {
			note(full)
		}
		cur = full
	}
	return parents, names
}
