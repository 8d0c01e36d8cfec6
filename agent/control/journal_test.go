package control

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newJournal(t *testing.T, dir string) *Journal {
	t.Helper()
	j := OpenJournal(dir, slog.New(slog.DiscardHandler))
	t.Cleanup(j.Close)
	return j
}

func ids(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%d ", e.ID)
	}
	return strings.TrimSpace(b.String())
}

// written waits until the file has every event.
func written(t *testing.T, j *Journal) {
	t.Helper()
	last, _ := j.Since(0)
	want := fmt.Sprintf(`{"id":%d,`, last[len(last)-1].ID)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		raw, err := os.ReadFile(j.path)
		if err == nil && bytes.Contains(raw, []byte(want)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("event %s not written: %v", want, err)
		}
	}
}

func TestNobodyWaitsForADiskThatHangs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal.jsonl")
	if err := syscall.Mkfifo(path, 0o600); err != nil { // nobody reads it: not even opening it returns
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	j := &Journal{path: path, next: 1, wake: make(chan struct{}), lines: NewLines(&journalLines{path: path, log: log}, func(int64) {})}
	for range 3 * journalEvents {
		j.Add(Event{Kind: "attachment", To: "detached"})
	}
	if all, _ := j.Since(0); all[len(all)-1].ID != 3*journalEvents {
		t.Errorf("the last is %d", all[len(all)-1].ID)
	}
	read, err := os.Open(path) // the disk is well again
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	line := make([]byte, 100)
	if n, err := read.Read(line); err != nil || n == 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	go io.Copy(io.Discard, read)
	j.Close()
}

func TestJournalNumbersGoOnOverARestart(t *testing.T) {
	dir := t.TempDir()
	j := newJournal(t, dir)
	for range 3 {
		j.Add(Event{Kind: "mode", To: "active"})
	}
	j.Close()
	j = newJournal(t, dir)
	if e := j.Add(Event{Kind: "mode", To: "drained"}); e.ID != 4 || e.At.IsZero() {
		t.Errorf("%+v", e)
	}
	all, _ := j.Since(0)
	if got := ids(all); got != "1 2 3 4" {
		t.Errorf("events %s", got)
	}
}

func TestJournalSurvivesWhatACrashLeaves(t *testing.T) {
	whole := `{"id":1,"at":"2026-03-01T12:00:00Z","kind":"mode","to":"active"}` + "\n" +
		`{"id":2,"at":"2026-03-01T12:00:01Z","kind":"mode","to":"drained"}` + "\n"
	for _, c := range []struct {
		name, rest string
		next       int64
		kept       string
	}{
		{"nothing torn", "", 3, "1 2 3"},
		{"a torn line", `{"id":3,"at":"2026-03-01T12:0`, 3, "1 2 3"},
		{"a line without its end", `{"id":3,"kind":"mode","to":"active"}`, 4, "1 2 3 4"},
		{"zeros after a power cut", strings.Repeat("\x00", 300_000), 3, "1 2 3"},
		{"zeros, then a later line", strings.Repeat("\x00", 300_000) + "\n" + `{"id":7,"kind":"mode","to":"active"}` + "\n", 8, "1 2 7 8"},
		{"empty lines", "\n\n\n", 3, "1 2 3"},
		{"a line of something else", "[]\n{}\nnull\n", 3, "1 2 3"},
		{"an older number", `{"id":1,"kind":"mode","to":"active"}` + "\n", 3, "1 2 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte(whole+c.rest), 0o600); err != nil {
				t.Fatal(err)
			}
			j := newJournal(t, dir)
			if e := j.Add(Event{Kind: "agent", To: "x"}); e.ID != c.next {
				t.Errorf("next number %d, want %d", e.ID, c.next)
			}
			j.Close()
			after, _ := newJournal(t, dir).Since(0)
			if got := ids(after); got != c.kept {
				t.Errorf("after one more restart: %s, want %s", got, c.kept)
			}
		})
	}
}

func TestJournalKeepsTwoBoundedFiles(t *testing.T) {
	dir := t.TempDir()
	j := newJournal(t, dir)
	detail := strings.Repeat("x", 1000)
	for i := range 3500 {
		j.Add(Event{Kind: "mode", To: "active", Detail: detail})
		if i%(journalEvents/4) == 0 {
			written(t, j)
		}
	}
	written(t, j)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v %v, want two files", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > journalBytes+2000 {
			t.Errorf("%s: %v %v", f, info, err)
		}
	}
	all, _ := j.Since(0)
	if len(all) > journalEvents || len(all) < journalEvents/2 || all[len(all)-1].ID != 3500 {
		t.Errorf("%d events in memory, the last %d", len(all), all[len(all)-1].ID)
	}
	for i := 1; i < len(all); i++ {
		if all[i].ID != all[i-1].ID+1 {
			t.Fatalf("%d after %d", all[i].ID, all[i-1].ID)
		}
	}
	j.Close()
	j = newJournal(t, dir)
	if e := j.Add(Event{}); e.ID != 3501 {
		t.Errorf("after a restart: %d", e.ID)
	}
	if all, _ := j.Since(0); len(all) < journalEvents/2 {
		t.Errorf("after a restart: %d events", len(all))
	}
}

func TestJournalWakesWhoFollows(t *testing.T) {
	j := newJournal(t, t.TempDir())
	_, more := j.Since(0)
	select {
	case <-more:
		t.Fatal("woken without an event")
	default:
	}
	j.Add(Event{Kind: "mode", To: "active"})
	select {
	case <-more:
	case <-time.After(time.Minute):
		t.Fatal("not woken")
	}
	if got, _ := j.Since(0); ids(got) != "1" {
		t.Errorf("%v", got)
	}
	if got, _ := j.Since(1); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if _, ok := j.find(1); !ok {
		t.Error("1 not found")
	}
	for _, id := range []int64{0, -1, 2} {
		if e, ok := j.find(id); ok {
			t.Errorf("%d found: %+v", id, e)
		}
	}
}

func TestJournalWithoutADiskKeepsEventsInMemoryAndSaysSoOnce(t *testing.T) {
	var out bytes.Buffer
	j := OpenJournal(filepath.Join(t.TempDir(), "gone"), slog.New(slog.NewTextHandler(&out, nil)))
	for range 3 {
		j.Add(Event{Kind: "mode", To: "active"})
	}
	j.Close()
	if all, _ := j.Since(0); ids(all) != "1 2 3" {
		t.Errorf("%v", all)
	}
	if n := strings.Count(out.String(), "kept in memory only"); n != 1 {
		t.Errorf("said %d times:\n%s", n, out.String())
	}
}
