package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readChunk bounds how many names of one directory are in memory at a time.
	readChunk = 256
	// scanLimit bounds the directory entries that one scan looks at.
	scanLimit = 500_000
)

// DirState says what is known of the data directory. The zero value is DirUnknown.
type DirState int

// The states. DirUnreadable is an error, and no statement about what is there.
const (
	DirUnknown    DirState = iota // not looked at yet, or no path given yet
	DirMissing                    // looked, and it is not there
	DirPresent                    // it is there, and its markers were read
	DirUnreadable                 // it, or what the globs lead to, cannot be read
)

// String is the word used in status and logs.
func (s DirState) String() string {
	switch s {
	case DirMissing:
		return "missing"
	case DirPresent:
		return "present"
	case DirUnreadable:
		return "unreadable"
	default:
		return "unknown"
	}
}

// DirView is the data directory as last scanned. A marker is a file or directory
// that matches one of the globs: proof that a broker has worked here before.
type DirView struct {
	State        DirState
	Error        string    // why unreadable; or why the scan of a present one is not complete
	Markers      int       // matches of the globs
	OldestMarker time.Time // modification time of the oldest match; zero without any
	OldestPath   string
	ScannedAt    time.Time
	// Watch is "events" while changes are reported by the kernel, "rescan" while only
	// the periodic scan sees them; empty in a view made by Scan alone.
	Watch string
	// Identity tells the directory that holds the markers from another one in its place;
	// empty: not known.
	Identity string
	// Generation counts the directories seen here: 1 for the first, one more each time
	// it was replaced (another inode or device, a symlink swap) or wiped. 0: none yet.
	Generation int
}

// Scan looks once at path and counts what matches the globs, which are relative to
// path and matched a segment at a time, as filepath.Match does. It needs no Run:
// the decision at startup and `holdfast check` use it.
//
// Its work is bounded: at most 500,000 entries are looked at. If that is not enough
// the view is DirPresent with an Error when markers were found, and DirUnreadable
// when none were, because "none so far" is not "none".
func Scan(path string, globs []string) DirView {
	view, _ := scan(context.Background(), path, globs)
	return view
}

// CheckReadable says why the data directory could not be watched, in the words of
// the command line. A directory that is missing is no error: it may come later.
func CheckReadable(path string) error {
	if path == "" {
		return nil
	}
	err := readable(path)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("--data-dir %s: permission denied: run holdfast as a user that may read it", path)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("--data-dir %s: not a directory: give the directory in which the broker keeps its data", path)
	default:
		return fmt.Errorf("--data-dir %s: %s: see that the file system is mounted and sound", path, reason(err))
	}
}

func readable(path string) error {
	dir, err := openDir(path)
	if err != nil {
		return err
	}
	_, err = dir.ReadDir(1)
	_ = dir.Close() // opened for reading: nothing is lost
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// openDir never blocks on a fifo or a device: O_DIRECTORY refuses them.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
}

// reason is the cause alone: "permission denied" without the call and the path.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// dirID tells one directory from another one of the same name. The birth time is
// there because file systems give a freed inode number out again; zero if unknown.
type dirID struct {
	device, inode uint64
	born          unix.StatxTimestamp
}

func identify(path string) (dirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return dirID{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	id := dirID{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime
	}
	return id, nil
}

// identity is what a directory is known by for as long as it is there, also after it was
// mounted elsewhere: its device may have another number then, and modification times move
// with what the broker writes. Empty where there is no birth time: a freed inode is given
// out again, and some file systems number anew at each mount.
func (id dirID) identity(name string) string {
	if id.born == (unix.StatxTimestamp{}) {
		return ""
	}
	return fmt.Sprintf("%s@%d-%d.%09d", name, id.inode, id.born.Sec, id.born.Nsec)
}

// findings are what a scan learned beyond the view, for the watch.
type findings struct {
	ids     map[string]dirID // the directory itself, and where each glob begins
	expand  []string         // directories whose entries decide what matches, at most maxWatches
	entries bool             // the directory itself is not empty
	holds   string           // in ids: the directory that holds the markers
}

// errScanLimit stops a scan that has looked at enough.
var errScanLimit = fmt.Errorf("more than %d entries: give a narrower --data-marker", scanLimit)

// scanner is one scan on its way.
type scanner struct {
	ctx   context.Context
	left  int
	view  *DirView
	found *findings
	seen  map[string]bool // in found.expand
}

func scan(ctx context.Context, path string, globs []string) (DirView, findings) {
	return scanUpTo(ctx, path, globs, scanLimit)
}

func scanUpTo(ctx context.Context, path string, globs []string, limit int) (DirView, findings) {
	view := DirView{ScannedAt: time.Now()}
	found := findings{ids: make(map[string]dirID)}
	if path == "" {
		view.Error = "the broker has not told its data directory, and --data-dir is not set"
		return view, found
	}
	s := &scanner{ctx: ctx, left: limit, view: &view, found: &found, seen: make(map[string]bool)}
	err := s.root(path)
	for i := 0; i < len(globs) && err == nil; i++ {
		err = s.glob(path, globs[i])
	}
	switch {
	case err == nil:
		view.State = DirPresent
	case errors.Is(err, errMissing):
		view.State = DirMissing
	case errors.Is(err, errScanLimit) && view.Markers > 0:
		view.State, view.Error = DirPresent, err.Error()
	default:
		view.State, view.Error = DirUnreadable, explain(err)
	}
	if view.State == DirPresent {
		name, _ := filepath.Rel(path, found.holds) // it is path, or below
		view.Identity = found.ids[found.holds].identity(name)
	} else {
		view.Markers, view.OldestMarker, view.OldestPath = 0, time.Time{}, ""
	}
	return view, found
}

// errMissing is returned by root alone: elsewhere, what vanished during the scan is
// simply not there.
var errMissing = errors.New("no such directory")

func explain(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return fmt.Sprintf("%s: %s", at.Path, reason(err))
	}
	return err.Error()
}

func (s *scanner) root(path string) error {
	id, err := identify(path)
	if err == nil {
		err = s.each(path, func(string) error { s.found.entries = true; return fs.SkipAll })
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errMissing
	case err != nil:
		return err
	}
	s.found.ids[path], s.found.holds = id, path
	s.watch(path)
	return nil
}

func (s *scanner) glob(path, glob string) error {
	segments := strings.Split(filepath.Clean(glob), "/")
	if base := filepath.Join(path, segments[0]); len(segments) > 1 && !isPattern(segments[0]) {
		if id, err := identify(base); err == nil {
			s.found.ids[base] = id
			if s.found.holds == path { // the first of several
				s.found.holds = base
			}
		}
	}
	return s.descend(path, segments, false)
}

func isPattern(segment string) bool { return strings.ContainsAny(segment, `*?[\`) }

// descend follows the segments below dir, depth first, so that it holds one open
// directory and at most readChunk names for each segment with a pattern. matched is
// true below the first pattern.
func (s *scanner) descend(dir string, segments []string, matched bool) error {
	segment, rest := segments[0], segments[1:]
	if !isPattern(segment) {
		// Events in dir tell when this segment appears. Below the last pattern that
		// would be one watch for each match, so there it is left to the rescan.
		if !matched || slices.ContainsFunc(rest, isPattern) {
			s.watch(dir)
		}
		return s.enter(filepath.Join(dir, segment), rest, matched)
	}
	s.watch(dir)
	err := s.each(dir, func(name string) error {
		matches, err := filepath.Match(segment, name)
		if err != nil {
			return fmt.Errorf("match --data-marker segment %q: %w", segment, err)
		}
		if !matches {
			return nil
		}
		return s.enter(filepath.Join(dir, name), rest, true)
	})
	if absent(err) {
		return nil
	}
	return err
}

// enter goes on below path, or counts it when the glob ends here.
func (s *scanner) enter(path string, rest []string, matched bool) error {
	if len(rest) > 0 {
		return s.descend(path, rest, matched)
	}
	info, err := os.Stat(path)
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	}
	s.view.Markers++
	if at := info.ModTime(); s.view.OldestPath == "" || at.Before(s.view.OldestMarker) {
		s.view.OldestMarker, s.view.OldestPath = at, path
	}
	return nil
}

// absent is true for what is not there. A file where the glob wants a directory is
// no match either.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// each calls do for the names in dir until it returns an error; fs.SkipAll ends the
// walk of dir without one.
func (s *scanner) each(dir string, do func(name string) error) error {
	f, err := openDir(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		names, err := f.Readdirnames(readChunk)
		for _, name := range names {
			if s.left--; s.left < 0 {
				return errScanLimit
			}
			if err := do(name); errors.Is(err, fs.SkipAll) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watch notes a directory whose events are worth having, as far as the budget goes.
func (s *scanner) watch(dir string) {
	if len(s.found.expand) < maxWatches && !s.seen[dir] {
		s.seen[dir] = true
		s.found.expand = append(s.found.expand, dir)
	}
}
