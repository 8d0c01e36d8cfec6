package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/probes"
)

func TestADataDirectoryThatIsNotTheOneThatTheBrokerStatesIsToldWithBoth(t *testing.T) {
	dir := t.TempDir()
	here, link, none, hidden := filepath.Join(dir, "here"), filepath.Join(dir, "link"), filepath.Join(dir, "none"), filepath.Join(dir, "hidden")
	for _, err := range []error{os.Mkdir(here, 0o700), os.Symlink(here, link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stated := ": leave --data-dir out, or give that"
	for _, c := range []struct{ name, given, stated, want string }{
		{"another", dir, here, "--data-dir " + dir + ": the broker says that its data is in " + here + stated},
		{"not there", none, here, "--data-dir " + none + ": not there, and the broker says that its data is in " + here + stated},
		{"neither is there", none, hidden, "--data-dir " + none + ": not there, and the broker says that its data is in " + hidden + stated},
		{"not there yet", none, none + "/", ""},
		{"not there yet, within", filepath.Join(here, "streams"), here, ""},
		{"not there, and none stated", none, "", ""},
		{"the same by another name", link, here, ""},
		{"within", here, dir, ""},
		{"seen elsewhere", here, hidden, ""},
	} {
		if got := elsewhere(c.given, c.stated); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestADirectoryThatIsNotThereIsLookedAtTwice(t *testing.T) {
	a := built(t)
	a.traits.LocalData, a.memory.Data = true, "jetstream@12-1700000000.000000000"
	base := t.TempDir()
	dir := filepath.Join(base, "data")
	a.dataDir.Expect(dir, time.Time{})
	ended := make(chan error)
	go func() { ended <- a.dataDir.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })
	look := func(want string) { // an answer of the directory's watch
		t.Helper()
		for from := time.Now(); a.dataDir.Snapshot().ScannedAt.Before(from); {
			a.dataDir.Look()
			select {
			case <-a.dataDir.Changes():
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: nobody looks", want)
			}
		}
		a.dataSeen("process-2")
		gone, doubtful := a.dataGone("process-2")
		got := map[[2]bool]string{{false, false}: "there", {false, true}: "doubtful", {true, false}: "gone"}[[2]bool{gone, doubtful}]
		if got != want || a.dataSeen("process-2") == doubtful {
			t.Errorf("%s, want %s; decided: %v", got, want, a.dataSeen("process-2"))
		}
	}
	later := func() { a.goneFrom = a.goneFrom.Add(-dataPatience) }
	a.dataSeen("process-2") // looks at it for the first time
	look("doubtful")
	look("doubtful") // too early
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	look("there") // mounted late
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	look("doubtful")
	later()
	look("gone")
	a.traits.LocalData = false
	look("there") // it is others' matter
}

// A disk that hangs must not keep a broker out; what it holds is not known then.
func TestALookAtTheDataIsWaitedForWithinABound(t *testing.T) {
	a := built(t)
	a.traits.LocalData = true
	a.dataDir.Expect(t.TempDir(), time.Time{}) // nobody looks at it
	before := probes.DirView{Identity: "jetstream@7:1"}
	for _, row := range []struct {
		waited time.Duration
		seen   bool
	}{{0, false}, {dataPatience - time.Second, false}, {dataPatience, true}} {
		a.dataOf, a.dataFrom = "process-2", time.Now().Add(-row.waited)
		if seen, found := a.dataSeen("process-2"), a.dataFound("process-2", before); seen != row.seen || found != "" {
			t.Errorf("after %v: seen %v, found %q", row.waited, seen, found)
		}
	}
}

func TestDataIsLookedAtOnceForEachProcess(t *testing.T) {
	a := built(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "jetstream"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.dataDir.Expect(dir, time.Time{})
	if !a.dataSeen("process-1") || a.ownData(a.dataDir.Snapshot()) != "" {
		t.Error("data that other brokers reach is judged")
	}
	a.traits.LocalData = true
	if a.dataSeen("process-1") {
		t.Error("seen, and nobody has looked")
	}
	before := a.dataDir.Snapshot().ScannedAt
	ended := make(chan error)
	go func() { ended <- a.dataDir.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })
	for _, process := range []string{"process-1", "process-2"} {
		for !a.dataSeen(process) {
			select {
			case <-a.dataDir.Changes():
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: nobody looks", process)
			}
		}
		if !a.dataDir.Snapshot().ScannedAt.After(before) {
			t.Errorf("%s: what was seen before it counts", process)
		}
		before = a.dataDir.Snapshot().ScannedAt
	}
}
