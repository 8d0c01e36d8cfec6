package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/agent/control"
)

func TestInstallCopiesThisProgramAndReplacesAnOlderOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "holdfast")
	if err := os.WriteFile(file, []byte("an older one"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := holdfast(t, "install", file)
	if code != control.ExitDone || !strings.HasPrefix(stdout, "installed "+file) {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := os.ReadFile(file); err != nil || !bytes.Equal(copied, self) {
		t.Errorf("%d bytes copied of %d: %v", len(copied), len(self), err)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o555 {
		t.Errorf("mode %s, so others cannot run it or may change it", info.Mode())
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInstallSaysWhereItCannotWriteAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "missing", "holdfast")
	code, _, stderr := holdfast(t, "install", file)
	if code != control.ExitFailed || !strings.Contains(stderr, "install "+file+": ") || !strings.Contains(stderr, "give a file in a directory that can be written") {
		t.Errorf("code %d, %q", code, stderr)
	}
	// A directory cannot be replaced by a file: the copy must not stay beside it.
	if err := os.MkdirAll(filepath.Join(dir, "taken", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr = holdfast(t, "install", filepath.Join(dir, "taken")); code != control.ExitFailed {
		t.Errorf("code %d, %q", code, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
