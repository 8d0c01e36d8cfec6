package probes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// identified is the identity of the directory, on a file system that can tell.
func identified(t *testing.T, path string, globs []string) string {
	t.Helper()
	id, err := identify(path, ".")
	if err != nil {
		t.Fatal(err)
	}
	if id == "" {
		t.Skip("no birth times here")
	}
	v := Scan(t.Context(), path, globs, time.Time{})
	if v.Identity == "" {
		t.Fatalf("no identity in %+v", v)
	}
	return v.Identity
}

func TestADirectoryIsKnownForAsLongAsItIsThere(t *testing.T) {
	root := t.TempDir()
	stream(t, root, "a")
	before := identified(t, root, streamGlob)
	if !strings.HasPrefix(before, "jetstream@") {
		t.Errorf("%s is not of the directory that holds the markers", before)
	}
	held := filepath.Join(root, "jetstream")
	stream(t, root, "b")
	if err := os.Chtimes(held, time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if now := identified(t, root, streamGlob); now != before {
		t.Errorf("%s, and %s after it was written to", before, now)
	}
	aside := filepath.Join(t.TempDir(), "elsewhere")
	rename(t, root, aside)
	if now := identified(t, aside, streamGlob); now != before {
		t.Errorf("%s, and %s at another place", before, now)
	}
	rename(t, aside, root)
	rename(t, held, held+".old")
	mkdir(t, held)
	if now := identified(t, root, streamGlob); now == before {
		t.Errorf("%s also after it was made anew", now)
	}
}

func TestTheIdentityIsOfTheFirstDirectoryThatAGlobNames(t *testing.T) {
	root := t.TempDir()
	both := []string{"jetstream/*/x", "*/x", "wal/*"}
	whole := identified(t, root, both)
	mkdir(t, root, "wal")
	wal := identified(t, root, both)
	mkdir(t, root, "jetstream")
	jetstream := identified(t, root, both)
	if !strings.HasPrefix(whole, ".@") || !strings.HasPrefix(wal, "wal@") || !strings.HasPrefix(jetstream, "jetstream@") {
		t.Errorf("%s, %s, %s", whole, wal, jetstream)
	}
}

func TestWithoutABirthTimeThereIsNoIdentity(t *testing.T) {
	if v := Scan(t.Context(), "/proc", nil, time.Time{}); v.State != DirPresent || v.Identity != "" {
		t.Errorf("%+v, of an inode alone", v)
	}
	if v := Scan(t.Context(), filepath.Join(t.TempDir(), "missing"), streamGlob, time.Time{}); v.Identity != "" {
		t.Errorf("%s, of a directory that is not there", v.Identity)
	}
}

// A disk that is mounted makes no event.
func TestWhoAsksForALookIsToldOfIt(t *testing.T) {
	path := t.TempDir()
	stream(t, path, "a")
	d := dataDir(path, never)
	d.noEvents = true
	defer runIt(t, d.Run)()
	until(t, d.Changes(), "the first scan", func() bool { return marked(d.Snapshot()) })
	for range 2 { // the second finds nothing new
		asked := time.Now()
		stream(t, path, "b")
		d.Look()
		until(t, d.Changes(), "a look", func() bool { return d.Snapshot().ScannedAt.After(asked) })
	}
}
