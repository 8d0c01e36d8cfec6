package registration

import (
	"errors"
	"testing"
	"time"

	"holdfast/agent/lease"
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
	o.past.Past.Data, o.past.Data = dataBefore, data
	o.past.Instance, o.past.Boot = "process-2", recovery.BootFacts{BrokerStartedAt: time.Now()}
	return o
}

func TestABrokerThatComesUpWithoutItsDataIsDrained(t *testing.T) {
	gone := func(o *outage) { o.past.Data, o.past.Boot.DirGone = "", "/data" }
	for _, c := range []struct {
		name   string
		change func(o *outage)
		want   recovery.Reason
		data   recovery.DataID // that is remembered then
	}{
		{"within the TTL", func(*outage) {}, recovery.ReasonDataMissing, dataAnother},
		{"after the TTL", func(o *outage) { o.lose() }, recovery.ReasonDataMissing, dataAnother},
		{"its state file is lost, and the member record remembers", func(o *outage) {
			o.past.Past.Data, o.past.Data = "", dataBefore
			o.establish(o.first.LeaseID)
			o.past.Past = Past{Incarnation: "mine"}
			o.past.Data, o.past.Instance, o.past.Mode = dataAnother, "process-2", recovery.ModeRecord{}
		}, recovery.ReasonDataMissing, dataAnother},
		{"its directory is not there", gone, recovery.ReasonDataMissing, ""},
		{"its directory is not there, and the member record remembers", func(o *outage) {
			o.past.Past.Data, o.past.Data = "", dataBefore
			o.establish(o.first.LeaseID)
			o.past.Past = Past{Incarnation: "mine"}
			o.past.Instance, o.past.Mode = "process-2", recovery.ModeRecord{}
			gone(o)
		}, recovery.ReasonDataMissing, ""},
		{"its directory is not there, and it never had one", func(o *outage) { o.past.Past.Data = ""; gone(o) }, recovery.ReasonFastRestart, ""},
		{"on the same directory", func(o *outage) { o.past.Data = dataBefore }, recovery.ReasonFastRestart, dataBefore},
		{"its data was brought to another directory", func(o *outage) { o.past.Boot.OldestMarker = time.Now().Add(-time.Minute) }, recovery.ReasonFastRestart, dataAnother},
		{"what it has now is not known", func(o *outage) { o.past.Data = "" }, recovery.ReasonFastRestart, dataBefore},
		{"what it had is not known", func(o *outage) { o.past.Past.Data = "" }, recovery.ReasonFastRestart, dataAnother},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := restartedOn(t, dataAnother)
			c.change(o)
			o.past.Mode = recovery.ModeRecord{}
			if o.past.Past.FirstBootDone {
				o.past.Past.Mode, o.past.Past.Reason = string(recovery.Active), string(recovery.ReasonBoot)
			}
			o.establish(0)
			out := o.outcomes[len(o.outcomes)-1]
			if d := out.Decision; d.Mode.Reason != c.want || (d.Mode.Mode == recovery.Drained) != (c.want == recovery.ReasonDataMissing) {
				t.Errorf("%s: %s; want %s", d, d.Detail, c.want)
			}
			if out.Data != c.data || o.snapshot().Member.Data != string(c.data) {
				t.Errorf("remembered is %s, and %s in the member record, want %s", out.Data, o.snapshot().Member.Data, c.data)
			}
		})
	}
}

// What a process that runs on does to its directory is not judged, and not forgotten.
func TestALossDoesNotMakeOtherDataTheBrokersOwn(t *testing.T) {
	o := newOutage(t, "reconnect")
	o.past.Past.Data, o.past.Data = dataBefore, dataAnother
	o.lose()
	o.establish(o.first.LeaseID)
	if out := o.outcomes[len(o.outcomes)-1]; out.Boot != "" || out.Data != dataBefore || o.snapshot().Member.Data != string(dataBefore) {
		t.Errorf("%+v, in the member record %s", out, o.snapshot().Member.Data)
	}
}

// What was seen of the directory may be of before a disk was exchanged in it.
func TestNothingIsDecidedOfANewProcessBeforeItsDataWasLookedAt(t *testing.T) {
	o := restartedOn(t, dataBefore)
	o.past.Unseen = true
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) || len(o.outcomes) != 1 {
		t.Errorf("%v, %d outcomes", err, len(o.outcomes))
	}
	o.past.Instance = "process-1"
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); err != nil {
		t.Errorf("the process that is registered: %v", err)
	}
}

// Others tell by it whether a broker that registered anew lived on (see Registrar.seenBeside).
func TestTheMemberRecordNamesTheProcessThatCameBack(t *testing.T) {
	o := newOutage(t, "drain")
	o.past.Instance, o.past.Boot = "process-2", recovery.BootFacts{StateFile: true}
	o.establish(o.first.LeaseID)
	if m := o.snapshot().Member; m == nil || m.Instance != "process-2" {
		t.Errorf("%+v", m)
	}
}

func TestADirectoryThatIsNotThereIsLookedAtOnceMore(t *testing.T) {
	o := restartedOn(t, "")
	o.past.Vanished = true
	if _, err := o.Establish(t.Context(), o.first.LeaseID, false); !errors.Is(err, lease.ErrDeferred) || len(o.outcomes) != 1 {
		t.Errorf("%v, %d outcomes", err, len(o.outcomes))
	}
	o.past.Past.Data = ""
	if o.establish(o.first.LeaseID); len(o.outcomes) != 2 {
		t.Errorf("one that had no data waits")
	}
}
