package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	OldestMarker time.Time // modification time of the oldest match that was looked at; zero without any
	OldestPath   string
	ScannedAt    time.Time
	// Identity tells the directory that holds the markers from another one in its place;
	// empty: not known.
	Identity string
}

// Scan looks once at path for what matches the globs, which are relative to path and matched
// a segment at a time, as filepath.Match does. It stops at the first match that is older than
// began, when the broker's process did: that one proves that the data was there before. With
// a zero began it looks at all. It needs no Run: `holdfast check` uses it.
//
// Its work is bounded: at most 500,000 entries are looked at. If that is not enough
// the view is DirPresent with an Error when markers were found, and DirUnreadable
// when none were, because "none so far" is not "none".
func Scan(path string, globs []string, began time.Time) DirView {
	return scan(context.Background(), path, globs, began, scanLimit)
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

// errScanLimit stops a scan that has looked at enough, and errOlder one that has found enough.
var (
	errScanLimit = fmt.Errorf("more than %d entries: give a narrower --data-marker", scanLimit)
	errOlder     = errors.New("a marker is older than the process")
)

// scanner is one scan on its way.
type scanner struct {
	ctx   context.Context
	began time.Time
	left  int
	view  *DirView
}

func scan(ctx context.Context, path string, globs []string, began time.Time, limit int) DirView {
	view := DirView{ScannedAt: time.Now()}
	if path == "" {
		view.Error = "the broker has not told its data directory, and --data-dir is not set"
		return view
	}
	s := &scanner{ctx: ctx, began: began, left: limit, view: &view}
	err := readable(path)
	missing := errors.Is(err, fs.ErrNotExist) // elsewhere, what vanished during the scan is simply not there
	if err == nil {
		view.Identity, err = identityOf(path, globs)
	}
	for i := 0; i < len(globs) && err == nil; i++ {
		err = s.descend(path, strings.Split(filepath.Clean(globs[i]), "/"))
	}
	switch {
	case missing:
		view.State = DirMissing
	case err == nil, errors.Is(err, errOlder):
		view.State = DirPresent
	case errors.Is(err, errScanLimit) && view.OldestPath != "":
		view.State, view.Error = DirPresent, err.Error()
	default:
		view = DirView{State: DirUnreadable, Error: explain(err), ScannedAt: view.ScannedAt}
	}
	return view
}

func explain(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return fmt.Sprintf("%s: %s", at.Path, reason(err))
	}
	return err.Error()
}

// identityOf is the identity of the directory that holds the markers: the first one that a glob
// names and that is there, else path itself.
func identityOf(path string, globs []string) (string, error) {
	for _, glob := range globs {
		name, _, below := strings.Cut(filepath.Clean(glob), "/")
		if !below || isPattern(name) {
			continue
		}
		if id, err := identify(filepath.Join(path, name)); err == nil {
			return id.identity(name), nil
		}
	}
	id, err := identify(path)
	return id.identity("."), err
}

func isPattern(segment string) bool { return strings.ContainsAny(segment, `*?[\`) }

// descend follows the segments below dir, depth first, so that it holds one open
// directory and at most readChunk names for each segment with a pattern.
func (s *scanner) descend(dir string, segments []string) error {
	segment, rest := segments[0], segments[1:]
	if !isPattern(segment) {
		return s.enter(filepath.Join(dir, segment), rest)
	}
	err := s.each(dir, func(name string) error {
		matches, err := filepath.Match(segment, name)
		if err != nil {
			return fmt.Errorf("match --data-marker segment %q: %w", segment, err)
		}
		if !matches {
			return nil
		}
		return s.enter(filepath.Join(dir, name), rest)
	})
	if absent(err) {
		return nil
	}
	return err
}

// enter goes on below path, or takes it for a marker when the glob ends here.
func (s *scanner) enter(path string, rest []string) error {
	if len(rest) > 0 {
		return s.descend(path, rest)
	}
	info, err := os.Stat(path)
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	}
	at := info.ModTime()
	if s.view.OldestPath == "" || at.Before(s.view.OldestMarker) {
		s.view.OldestMarker, s.view.OldestPath = at, path
	}
	if at.Before(s.began) {
		return errOlder
	}
	return nil
}

// absent is true for what is not there. A file where the glob wants a directory is
// no match either.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// each calls do for the names in dir until it returns an error.
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
			if err := do(name); err != nil {
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
