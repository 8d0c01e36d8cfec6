package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestACopyOfAStateDirectoryIsElsewhere(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "state")
	d, err := openStateDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	m := memory{Place: d.place()}
	if m.Place == "" || m.movedTo(d.place()) {
		t.Errorf("%q: moved without being moved", m.Place)
	}
	aside := filepath.Join(base, "aside")
	if err := os.Rename(path, aside); err != nil {
		t.Fatal(err)
	}
	if m.movedTo((&stateDir{path: aside}).place()) {
		t.Error("a directory that got another name is another one")
	}
	if err := os.CopyFS(path, os.DirFS(aside)); err != nil {
		t.Fatal(err)
	}
	if !m.movedTo(d.place()) {
		t.Error("a copy is taken for the directory")
	}
	if another := "another" + strings.TrimLeft(m.Place, "0123456789abcdef"); !m.movedTo(another) {
		t.Error("the same directory on another machine is taken for this one")
	}
	if (memory{}).movedTo(d.place()) || m.movedTo("") {
		t.Error("what is not known condemns")
	}
}

func TestNobodyIsStoppedOnASuspicion(t *testing.T) {
	inLife(t, stoppable, func(l *sidecarLife) {
		l.inLoop(func() {
			attached, instance := l.everAttached, l.memory.Instance
			l.everAttached, l.memory.Instance = false, "another"
			l.registrar.Rival.Store(true)
			suspected := l.ladderFacts(l.verdict).Stop
			l.conflict = "a copy"
			if proven := l.ladderFacts(l.verdict).Stop; suspected || !proven {
				t.Errorf("stopped when suspected %t, when proven %t", suspected, proven)
			}
			l.everAttached, l.memory.Instance, l.conflict = attached, instance, ""
			l.registrar.Rival.Store(false)
		})
	})
}
