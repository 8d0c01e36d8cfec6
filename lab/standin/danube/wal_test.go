package danube

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func appended(t *testing.T, dir string, from uint64, messages ...string) *wal {
	t.Helper()
	w, err := openWAL(dir, 40, from)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if _, err := w.append([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func wantMessages(t *testing.T, w *wal, want string) {
	t.Helper()
	text := ""
	for _, m := range w.read(0, 100) {
		text += fmt.Sprintf("%d:%s ", m.Offset, m.Data)
	}
	if text != want {
		t.Errorf("read %q, want %q", text, want)
	}
}

func TestARecordThatAKillCutShortIsCutOffAndTheNextTakesItsOffset(t *testing.T) {
	for _, c := range []struct {
		name string
		tail []byte
	}{
		{"half a length", []byte{0, 0}},
		{"half a message", []byte{0, 0, 0, 9, 1, 2, 3, 4, 'h', 'a'}},
		{"a wrong checksum", []byte{0, 0, 0, 1, 1, 2, 3, 4, 'h'}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := appended(t, dir, 0, "a", "b").rotate(); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(filepath.Join(dir, segmentName(0)), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(c.tail); err != nil {
				t.Fatal(err)
			}
			f.Close()
			w := appended(t, dir, 0, "c")
			defer w.rotate()
			wantMessages(t, w, "0:a 1:b 2:c ")
		})
	}
}

func TestASegmentWithoutAWholeRecordIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := appended(t, dir, 0, "a").rotate(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), []byte{0, 0, 0}, 0o644); err != nil {
		t.Fatal(err)
	}
	w := appended(t, dir, 0, "b")
	defer w.rotate()
	wantMessages(t, w, "0:a 1:b ")
}

func TestALogOverManySegmentsReadsInOrder(t *testing.T) {
	dir := t.TempDir()
	w := appended(t, dir, 0, "aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb", "c", "d")
	if len(w.segments) != 2 {
		t.Errorf("%d segments", len(w.segments))
	}
	if err := w.rotate(); err != nil {
		t.Fatal(err)
	}
	w = appended(t, dir, 0, "e")
	defer w.rotate()
	wantMessages(t, w, "0:aaaaaaaaaaaaaaaaaaaa 1:bbbbbbbbbbbbbbbbbbbb 2:c 3:d 4:e ")
	if w.count() != 5 || w.next != 5 {
		t.Errorf("counts %d, next %d", w.count(), w.next)
	}
}

func TestALogGoesOnWhereItWasSealedElsewhere(t *testing.T) {
	w := appended(t, t.TempDir(), 7, "h")
	defer w.rotate()
	wantMessages(t, w, "7:h ")
	if w.count() != 1 || w.next != 8 {
		t.Errorf("counts %d, next %d", w.count(), w.next)
	}
}

func TestASealedLogIsFoundByTheNextOwner(t *testing.T) {
	first, shared, second := t.TempDir(), t.TempDir(), t.TempDir()
	if err := appended(t, first, 0, "a", "b").rotate(); err != nil {
		t.Fatal(err)
	}
	for _, step := range [][2]string{{first, shared}, {shared, second}} {
		if err := copySegments(step[0], step[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := appended(t, second, 0, "c").rotate(); err != nil {
		t.Fatal(err)
	}
	for _, step := range [][2]string{{second, shared}, {shared, first}} {
		if err := copySegments(step[0], step[1]); err != nil {
			t.Fatal(err)
		}
	}
	w := appended(t, first, 0)
	wantMessages(t, w, "0:a 1:b 2:c ")
}

func TestOnlyAnAssignmentHasTwoSegmentsBehindTheBroker(t *testing.T) {
	for key, want := range map[string]string{
		"/cluster/brokers/7/default/orders": "7 /default/orders", "/cluster/brokers/7/default/state": "7 /default/state",
		"/cluster/brokers/7/state": "", "/cluster/brokers/7/a/b/c": "", "/cluster/brokers/7//x": "", "/cluster/load/7": "",
	} {
		got := ""
		if id, topic, ok := splitAssignment(key); ok {
			got = id + " " + topic
		}
		if got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
