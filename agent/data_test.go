package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/probes"
	"holdfast/recovery"
)

const (
	dataBefore  recovery.DataID = "jetstream@12-1700000000.000000000"
	dataAnother recovery.DataID = "jetstream@12-1800000000.000000000"
)

// restartedOn is a broker that was registered with data, and has come up again on another
// directory with nothing in it.
func restartedOn(t *testing.T, data recovery.DataID) *outage {
	o := newOutage(t, "drain")
	o.past.memory.Data, o.past.data = dataBefore, data
	o.past.instance, o.past.boot = "process-2", recovery.BootFacts{BrokerStartedAt: time.Now()}
	return o
}

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

func TestABrokerThatComesUpWithoutItsDataIsDrained(t *testing.T) {
	gone := func(o *outage) { o.past.data, o.past.boot.DirGone = "", "/data" }
	for _, c := range []struct {
		name   string
		change func(o *outage)
		want   recovery.Reason
		data   recovery.DataID // that is remembered then
	}{
		{"within the TTL", func(*outage) {}, recovery.ReasonDataMissing, dataAnother},
		{"after the TTL", func(o *outage) { o.lose() }, recovery.ReasonDataMissing, dataAnother},
		{"its state file is lost, and the member record remembers", func(o *outage) {
			o.past.memory.Data, o.past.data = "", dataBefore
			o.establish(o.first.LeaseID)
			o.past.memory = memory{Format: memoryFormat, Incarnation: "mine"}
			o.past.data, o.past.instance, o.past.mode = dataAnother, "process-2", recovery.ModeRecord{}
		}, recovery.ReasonDataMissing, dataAnother},
		{"its directory is not there", gone, recovery.ReasonDataMissing, ""},
		{"its directory is not there, and the member record remembers", func(o *outage) {
			o.past.memory.Data, o.past.data = "", dataBefore
			o.establish(o.first.LeaseID)
			o.past.memory = memory{Format: memoryFormat, Incarnation: "mine"}
			o.past.instance, o.past.mode = "process-2", recovery.ModeRecord{}
			gone(o)
		}, recovery.ReasonDataMissing, ""},
		{"its directory is not there, and it never had one", func(o *outage) { o.past.memory.Data = ""; gone(o) }, recovery.ReasonFastRestart, ""},
		{"on the same directory", func(o *outage) { o.past.data = dataBefore }, recovery.ReasonFastRestart, dataBefore},
		{"its data was brought to another directory", func(o *outage) { o.past.boot.OldestMarker = time.Now().Add(-time.Minute) }, recovery.ReasonFastRestart, dataAnother},
		{"what it has now is not known", func(o *outage) { o.past.data = "" }, recovery.ReasonFastRestart, dataBefore},
		{"what it had is not known", func(o *outage) { o.past.memory.Data = "" }, recovery.ReasonFastRestart, dataAnother},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := restartedOn(t, dataAnother)
			c.change(o)
			o.past.mode = recovery.ModeRecord{}
			if o.past.memory.FirstBootDone {
				o.past.memory.Mode, o.past.memory.Reason = string(recovery.Active), string(recovery.ReasonBoot)
			}
			o.establish(0)
			out := o.outcomes[len(o.outcomes)-1]
			if d := out.decision; d.Mode.Reason != c.want || (d.Mode.Mode == recovery.Drained) != (c.want == recovery.ReasonDataMissing) {
				t.Errorf("%s: %s; want %s", d, d.Detail, c.want)
			}
			if out.data != c.data || o.snapshot().Member.Data != string(c.data) {
				t.Errorf("remembered is %s, and %s in the member record, want %s", out.data, o.snapshot().Member.Data, c.data)
			}
		})
	}
}

// What a process that runs on does to its directory is not judged, and not forgotten.
func TestALossDoesNotMakeOtherDataTheBrokersOwn(t *testing.T) {
	o := newOutage(t, "reconnect")
	o.past.memory.Data, o.past.data = dataBefore, dataAnother
	o.lose()
	o.establish(o.first.LeaseID)
	if out := o.outcomes[len(o.outcomes)-1]; out.boot != "" || out.data != dataBefore || o.snapshot().Member.Data != string(dataBefore) {
		t.Errorf("%+v, in the member record %s", out, o.snapshot().Member.Data)
	}
}

// What was seen of the directory may be of before a disk was exchanged in it.
func TestNothingIsDecidedOfANewProcessBeforeItsDataWasLookedAt(t *testing.T) {
	o := restartedOn(t, dataBefore)
	o.past.unseen = true
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) || len(o.outcomes) != 1 {
		t.Errorf("%v, %d outcomes", err, len(o.outcomes))
	}
	o.past.instance = "process-1"
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); err != nil {
		t.Errorf("the process that is registered: %v", err)
	}
}

func TestADirectoryThatIsNotThereIsLookedAtTwice(t *testing.T) {
	o := restartedOn(t, "")
	o.past.vanished = true
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) || len(o.outcomes) != 1 {
		t.Errorf("%v, %d outcomes", err, len(o.outcomes))
	}
	o.past.memory.Data = ""
	if o.establish(o.first.LeaseID); len(o.outcomes) != 2 {
		t.Errorf("one that had no data waits")
	}

	a := built(t)
	a.traits.LocalData, a.memory.Data = true, dataBefore
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

// Others tell by it whether a broker that registered anew lived on (see registrar.unmoved).
func TestTheMemberRecordNamesTheProcessThatCameBack(t *testing.T) {
	o := newOutage(t, "drain")
	o.past.instance, o.past.boot = "process-2", recovery.BootFacts{StateFile: true}
	o.establish(o.first.LeaseID)
	if m := o.snapshot().Member; m == nil || m.Instance != "process-2" {
		t.Errorf("%+v", m)
	}
}
