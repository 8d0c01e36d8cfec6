package probes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// scanMost bounds the directory entries that one scan looks at.
const scanMost = 500_000

// scanLimit is scanMost, but in tests.
var scanLimit = scanMost

// DirState says what is known of the data directory, in the word used in status and logs.
type DirState string

// The states. DirUnreadable is an error, and no statement about what is there.
const (
	DirUnknown    DirState = "unknown"    // not looked at yet, or no path given yet
	DirMissing    DirState = "missing"    // looked, and it is not there
	DirPresent    DirState = "present"    // it is there, and its markers were read
	DirUnreadable DirState = "unreadable" // it, or what the globs lead to, cannot be read
)

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
// a zero began it looks at all. It needs no Run: `holdfast check` uses it. Of a scan that ctx has
// cut short nothing is to be believed.
//
// Its work is bounded: at most 500,000 entries are looked at. If that is not enough
// the view is DirPresent with an Error when markers were found, and DirUnreadable
// when none were, because "none so far" is not "none".
func Scan(ctx context.Context, path string, globs []string, began time.Time) DirView {
	s := &scanner{DirView{State: DirUnknown, ScannedAt: time.Now()}, ctx, began, scanLimit}
	if path == "" {
		s.Error = "the broker has not told its data directory, and --data-dir is not set"
		return s.DirView
	}
	dir, err := openDir(path)
	if errors.Is(err, fs.ErrNotExist) { // what vanishes from here on is simply not there
		s.State = DirMissing
		return s.DirView
	}
	if err == nil {
		_ = dir.Close() // opened for reading: nothing is lost
		s.Identity, err = identityOf(path, globs)
	}
	for i := 0; i < len(globs) && err == nil; i++ {
		err = s.descend(path, strings.Split(filepath.Clean(globs[i]), "/"))
	}
	s.State = DirPresent
	if err == nil || errors.Is(err, errOlder) {
		return s.DirView
	}
	s.Error = err.Error()
	if at, of := errors.AsType[*fs.PathError](err); of {
		s.Error = at.Path + ": " + at.Err.Error()
	}
	if !errors.Is(err, errScanLimit) || s.OldestPath == "" {
		return DirView{State: DirUnreadable, Error: s.Error, ScannedAt: s.ScannedAt}
	}
	return s.DirView
}

// CheckReadable says why the data directory could not be watched, in the words of
// the command line. A directory that is missing is no error: it may come later.
func CheckReadable(path string) error {
	if v := Scan(context.Background(), path, nil, time.Time{}); v.State == DirUnreadable {
		return fmt.Errorf("--data-dir %s: give the directory in which the broker keeps its data, as a user that may read it", v.Error)
	}
	return nil
}

// openDir never blocks on a fifo or a device: O_DIRECTORY refuses them.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
}

// identify returns what a directory below path is known by for as long as it is there, also
// after it was mounted elsewhere: its device may have another number then, and modification
// times move with what the broker writes. Empty where there is no birth time: a freed inode is
// given out again, and some file systems number anew at each mount.
func identify(path, name string) (string, error) {
	var st unix.Statx_t
	path = filepath.Join(path, name)
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Mask&unix.STATX_BTIME == 0 || st.Btime == (unix.StatxTimestamp{}) {
		return "", nil
	}
	return fmt.Sprintf("%s@%d-%d.%09d", name, st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}

// identityOf is the identity of the directory that holds the markers: the first one that a glob
// names and that is there, else path itself.
func identityOf(path string, globs []string) (string, error) {
	for _, glob := range globs {
		if name, _, below := strings.Cut(filepath.Clean(glob), "/"); below && !isPattern(name) {
			if id, err := identify(path, name); err == nil {
				return id, nil
			}
		}
	}
	return identify(path, ".")
}

// errScanLimit stops a scan that has looked at enough, and errOlder one that has found enough.
var (
	errScanLimit = fmt.Errorf("more than %d entries: give a narrower --data-marker", scanMost)
	errOlder     = errors.New("a marker is older than the process")
)

// scanner is one scan on its way.
type scanner struct {
	DirView
	ctx   context.Context
	began time.Time
	left  int
}

func isPattern(segment string) bool { return strings.ContainsAny(segment, `*?[\`) }

// descend follows the segments below path, depth first, so that it holds one open directory and its
// names for each segment with a pattern. It takes path for a marker where the glob ends. What is not there
// is no match, nor is a file where the glob wants a directory.
func (s *scanner) descend(path string, segments []string) error {
	switch {
	case len(segments) == 0:
		return s.mark(path)
	case !isPattern(segments[0]):
		return s.descend(filepath.Join(path, segments[0]), segments[1:])
	}
	dir, err := openDir(path)
	if err != nil {
		return unlessAbsent(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if s.left--; s.left < 0 {
			return errScanLimit
		}
		matches, err := filepath.Match(segments[0], name)
		if err != nil {
			return fmt.Errorf("match --data-marker segment %q: %w", segments[0], err)
		}
		if matches {
			err = s.descend(filepath.Join(path, name), segments[1:])
		}
		if err := cmp.Or(s.ctx.Err(), err); err != nil {
			return err
		}
	}
	return unlessAbsent(err)
}

func (s *scanner) mark(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return unlessAbsent(err)
	}
	if at := info.ModTime(); s.OldestPath == "" || at.Before(s.OldestMarker) {
		s.OldestMarker, s.OldestPath = at, path
	}
	if s.OldestMarker.Before(s.began) {
		return errOlder
	}
	return nil
}

func unlessAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}
