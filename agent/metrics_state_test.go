package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/agent/control"
	"holdfast/agent/guard"
	"holdfast/agent/lease"
	"holdfast/brokerapi"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

func TestTheReasonOfADrainedIsBounded(t *testing.T) {
	for name, row := range map[string]struct {
		mode recovery.ModeRecord
		want string
	}{
		"active":                          {recovery.ModeRecord{Mode: recovery.Active, Reason: recovery.ReasonBoot, By: recovery.ByHoldfast}, ""},
		"draining":                        {recovery.ModeRecord{Mode: recovery.Draining, Reason: "operator", By: recovery.ByOperator}, ""},
		"not known yet":                   {recovery.ModeRecord{}, ""},
		"decided by recovery":             {recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonStaleRestart, By: recovery.ByHoldfast}, "stale_restart"},
		"a reason without a series":       {recovery.ModeRecord{Mode: recovery.Drained, Reason: "something new", By: recovery.ByHoldfast}, "other"},
		"a person's, in words of his own": {recovery.ModeRecord{Mode: recovery.Drained, Reason: "Ticket 42", By: recovery.ByOperator}, "operator"},
		"a person's, in one of our words": {recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonStaleRestart, By: recovery.ByOperator}, "operator"},
		"the end of a pod":                {recovery.ModeRecord{Mode: recovery.Drained, Reason: "pod_stop", By: recovery.ByOperator}, "pod_stop"},
		"another program's":               {recovery.ModeRecord{Mode: recovery.Drained, Reason: "maintenance", By: "broker"}, "operator"},
	} {
		if got := drainedReason(row.mode); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

func TestADrainIsPendingWhileSomethingIsServedOrTheBrokerHasNotTakenIt(t *testing.T) {
	served, idle := topics.Progress{ServedKnown: true, Counts: recovery.Counts{Served: 1}}, topics.Progress{ServedKnown: true}
	for name, row := range map[string]struct {
		mode       recovery.Mode
		attachment recovery.Attachment
		progress   topics.Progress
		taken      recovery.Steering
		want       bool
	}{
		"active and serving":             {recovery.Active, recovery.Attached, served, recovery.SteerDone, false},
		"drained and serving":            {recovery.Drained, recovery.Attached, served, recovery.SteerNone, true},
		"draining and serving":           {recovery.Draining, recovery.Attached, served, recovery.SteerNone, true},
		"drained, only orphans are left": {recovery.Drained, recovery.Attached, topics.Progress{ServedKnown: true, Counts: recovery.Counts{Orphan: 1}}, recovery.SteerNone, true},
		"drained and idle":               {recovery.Drained, recovery.Attached, idle, recovery.SteerNone, false},
		"drained, only what was before":  {recovery.Drained, recovery.Attached, topics.Progress{Counts: recovery.Counts{Served: 1}}, recovery.SteerNone, false},
		"the broker is being told":       {recovery.Drained, recovery.Attached, idle, recovery.SteerPending, true},
		"the broker refuses":             {recovery.Drained, recovery.Attached, idle, recovery.SteerFailing, true},
		"detached: the fence has it":     {recovery.Drained, recovery.Detached, served, recovery.SteerFailing, false},
	} {
		s := &snapshot{Circumstances: recovery.Circumstances{Mode: recovery.ModeRecord{Mode: row.mode}, Attachment: row.attachment}}
		if got := drainPending(s, row.progress, row.taken); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The sidecar that was killed never counts what its guard did, and the one after it begins
// to count at zero.
func TestTheGuardsShotIsKnownToTheNextSidecar(t *testing.T) {
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	shot := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	before := control.OpenJournal(dir, quiet)
	before.Add(control.Event{Kind: "fence", To: guard.Fired, DoneAt: shot})
	before.Add(control.Event{Kind: "fence", To: "gone"})
	before.Close()

	a := &agent{journal: control.OpenJournal(dir, quiet)}
	defer a.journal.Close()
	reg := prometheus.NewRegistry()
	m := newGuardMetrics(reg, a)
	if got := time.UnixMilli(m.lastFired.Load()).UTC(); !got.Equal(shot) {
		t.Errorf("it fired at %s, want %s", got, shot)
	}
	m.fired(shot.Add(time.Hour))
	m.fired(shot) // told of late
	if got := time.UnixMilli(m.lastFired.Load()).UTC(); !got.Equal(shot.Add(time.Hour)) {
		t.Errorf("it fired last at %s", got)
	}
	if n := testutil.ToFloat64(m.firings); n != 2 {
		t.Errorf("%v firings counted", n)
	}
}

func TestWhatIsWrongIsShownAsOne(t *testing.T) {
	value := func(reg *prometheus.Registry, name, label string) float64 {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "holdfast_"+name && (label == "" || m.GetLabel()[0].GetValue() == label) {
					return m.GetGauge().GetValue()
				}
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	a, reg := builtWith(t)
	for _, row := range []struct {
		name, metric, label string
		on                  func(*snapshot)
	}{
		{"the state key is not ours", "mode_mismatch", "", func(s *snapshot) { s.reassert = true }},
		{"another sidecar is registered", "identity_conflict", "", func(s *snapshot) { s.Conflict = "held by another" }},
		{"nothing can stop the broker", "broker_restart_required", "", func(s *snapshot) { s.Restart = "it hangs" }},
		{"startup is over", "startup_done", "", func(s *snapshot) { s.EverReady = true }},
		{"drained by recovery", "drained", "stale_restart", func(s *snapshot) {
			s.Mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: recovery.ReasonStaleRestart, By: recovery.ByHoldfast}
		}},
	} {
		if v := value(reg, row.metric, row.label); v != 0 {
			t.Errorf("%s: %s is %v before", row.name, row.metric, v)
		}
		s := *a.view.Load()
		row.on(&s)
		a.view.Store(&s)
		if v := value(reg, row.metric, row.label); v != 1 {
			t.Errorf("%s: %s is %v", row.name, row.metric, v)
		}
		a.publish()
	}
}

// A sidecar that is started beside a broker without a registration has never listed it.
func TestABrokerThatWasNotAskedAndMayServeIsAZombieOnceItsRegistrationIsKnownToBeAbsent(t *testing.T) {
	unreachable := lease.View{LastError: "no answer", LastClass: "timeout"}
	for name, row := range map[string]struct {
		assigns bool
		view    lease.View
		served  topics.Progress
		want    bool
	}{
		"not asked yet":                      {true, lease.View{}, topics.Progress{}, true},
		"not asked yet, and etcd is away":    {true, unreachable, topics.Progress{}, false},
		"not asked yet, and given no topics": {false, lease.View{}, topics.Progress{}, false},
		"it serves nothing":                  {true, lease.View{}, topics.Progress{ServedKnown: true}, false},
		"it serves":                          {false, unreachable, topics.Progress{ServedKnown: true, Counts: recovery.Counts{Served: 1}}, true},
		"it serves what is not its own":      {false, lease.View{}, topics.Progress{ServedKnown: true, Counts: recovery.Counts{Orphan: 1}}, true},
	} {
		a := built(t)
		a.traits.Places = row.assigns
		if got := a.servesUnregistered(a.view.Load(), row.view, row.served); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	a := built(t)
	a.traits.AtDeadline, a.cfg.Fence = brokerapi.Nothing, []string{"ready"}
	serves := topics.Progress{ServedKnown: true, Counts: recovery.Counts{Served: 1}}
	if a.servesUnregistered(a.view.Load(), unreachable, serves) || !a.servesUnregistered(a.view.Load(), lease.View{}, serves) {
		t.Error("one whose storage fences it: want a zombie once it is known not to be registered, and not while etcd is away")
	}
}
