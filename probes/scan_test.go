package probes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var streamGlob = []string{"jetstream/*/streams/*/meta.inf"}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func touch(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func stream(t *testing.T, root, name string) string {
	t.Helper()
	return touch(t, root, "jetstream", "$G", "streams", name, "meta.inf")
}

// publicDir is a t.TempDir that others may read.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unprivileged calls do on a thread that may read only what others may read: root
// reads everything. The thread is not used again.
func unprivileged(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		do()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			t.Errorf("setfsuid: %v", err)
			return
		}
		do()
	}()
	<-done
}

// limitScans lets a scan look at so many entries until the end of the test.
func limitScans(t *testing.T, most int) {
	t.Helper()
	scanLimit = most
	t.Cleanup(func() { scanLimit = scanMost })
}

func TestScanFindsTheOldestMarker(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		stream(t, root, name)
	}
	mkdir(t, root, "jetstream", "$G", "streams", "half-made")
	touch(t, root, "jetstream", "a-file")
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	oldest := stream(t, root, "b")
	if err := os.Chtimes(oldest, old, old); err != nil {
		t.Fatal(err)
	}
	v := Scan(t.Context(), root, streamGlob, time.Time{})
	if v.State != DirPresent || v.Error != "" || !v.OldestMarker.Equal(old) || v.OldestPath != oldest {
		t.Errorf("%+v", v)
	}
	if v.ScannedAt.IsZero() {
		t.Errorf("%+v", v)
	}
}

func TestScanTellsMissingFromUnreadable(t *testing.T) {
	dir := publicDir(t)
	file := touch(t, dir, "file")
	closed := mkdir(t, dir, "closed")
	inner := mkdir(t, dir, "inner")
	stream(t, inner, "a")
	for _, path := range []string{closed, filepath.Join(inner, "jetstream", "$G")} {
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
	}
	loop := filepath.Join(dir, "loop")
	dangling := filepath.Join(dir, "dangling")
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(loop, loop), os.Symlink("nowhere", dangling), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		globs      []string
		state      DirState
		err        string
	}{
		{"no path", "", streamGlob, DirUnknown, "the broker has not told its data directory, and --data-dir is not set"},
		{"missing", filepath.Join(dir, "none"), streamGlob, DirMissing, ""},
		{"parent missing", filepath.Join(dir, "none", "data"), streamGlob, DirMissing, ""},
		{"dangling symlink", dangling, streamGlob, DirMissing, ""},
		{"a file", file, streamGlob, DirUnreadable, file + ": not a directory"},
		{"below a file", filepath.Join(file, "data"), streamGlob, DirUnreadable, file + "/data: not a directory"},
		{"a fifo", fifo, streamGlob, DirUnreadable, fifo + ": not a directory"},
		{"symlink loop", loop, streamGlob, DirUnreadable, loop + ": too many levels of symbolic links"},
		{"no permission", closed, streamGlob, DirUnreadable, closed + ": permission denied"},
		{"below no permission", filepath.Join(closed, "data"), streamGlob, DirUnreadable, closed + "/data: permission denied"},
		{"no permission further in", inner, streamGlob, DirUnreadable, inner + "/jetstream/$G/streams: permission denied"},
		{"no permission where no glob leads", inner, []string{"other/*"}, DirPresent, ""},
		{"bad pattern", dir, []string{"[x"}, DirUnreadable, `match --data-marker segment "[x": syntax error in pattern`},
		{"empty directory", mkdir(t, dir, "empty"), streamGlob, DirPresent, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			unprivileged(t, func() {
				v := Scan(t.Context(), tt.path, tt.globs, time.Time{})
				if v.State == DirUnknown && tt.path != "" || tt.state != v.State {
					// DirUnknown is only for a path that is not known.
					t.Errorf("state %v, want %v: %+v", v.State, tt.state, v)
				}
				if v.Error != tt.err || v.OldestPath != "" {
					t.Errorf("error %q, want %q, marker %s", v.Error, tt.err, v.OldestPath)
				}
			})
		})
	}
}

func TestCheckReadableSaysWhatToDo(t *testing.T) {
	dir := publicDir(t)
	closed := mkdir(t, dir, "closed")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o755) })
	file := touch(t, dir, "file")
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	const remedy = ": give the directory in which the broker keeps its data, as a user that may read it"
	for name, tt := range map[string]struct{ path, want string }{
		"not given":       {"", ""},
		"sound":           {dir, ""},
		"missing, so far": {filepath.Join(dir, "none"), ""},
		"not permitted":   {closed, "--data-dir " + closed + ": permission denied" + remedy},
		"a file":          {file, "--data-dir " + file + ": not a directory" + remedy},
		"a symlink loop":  {loop, "--data-dir " + loop + ": too many levels of symbolic links" + remedy},
	} {
		t.Run(name, func(t *testing.T) {
			unprivileged(t, func() {
				got := ""
				if err := CheckReadable(tt.path); err != nil {
					got = err.Error()
				}
				if got != tt.want {
					t.Errorf("got  %q\nwant %q", got, tt.want)
				}
			})
		})
	}
}

func TestScanStopsAtTheFirstMarkerOlderThanTheProcess(t *testing.T) {
	root := t.TempDir()
	began := time.Now().Add(-time.Hour)
	for i := range 5 {
		old := stream(t, root, fmt.Sprint(i))
		if err := os.Chtimes(old, began.Add(-time.Minute), began.Add(-time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	// Three entries: $G, the first stream, and one to spare.
	limitScans(t, 3)
	if v := Scan(t.Context(), root, streamGlob, began); v.State != DirPresent || v.Error != "" || !v.OldestMarker.Before(began) {
		t.Errorf("%+v", v)
	}
	if v := Scan(t.Context(), root, streamGlob, began.Add(-2*time.Minute)); v.Error == "" {
		t.Errorf("younger ones are no reason to stop: %+v", v)
	}
}

func TestScanThatIsCutShortIsNotAnAbsence(t *testing.T) {
	root := t.TempDir()
	stream(t, root, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v := Scan(ctx, root, streamGlob, time.Time{}); v.State != DirUnreadable || v.Error == "" {
		t.Errorf("%+v", v)
	}
}

func TestScanLimitIsIncompleteAndNeverNone(t *testing.T) {
	root := t.TempDir()
	for i := range 5 {
		stream(t, root, fmt.Sprint(i))
	}
	for left, want := range map[int]DirState{0: DirUnreadable, 1: DirUnreadable, 5: DirPresent, 100: DirPresent} {
		limitScans(t, left)
		v := Scan(t.Context(), root, streamGlob, time.Time{})
		if v.State != want || (left < 100) != strings.Contains(v.Error, "give a narrower --data-marker") {
			t.Errorf("limit %d: %+v", left, v)
		}
	}
}
