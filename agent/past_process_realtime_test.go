package agent

import (
	"context"
	"os"
	"testing"
	"time"

	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// The start of a process is known in ticks since the boot, its pid file's time and what the
// broker says of its start are of the wall clock, which was set since.
func TestAProcessThatWasRecognizedIsKnownAfterTheWallClockWasSet(t *testing.T) {
	space, err := process.Space()
	if err != nil {
		t.Fatal(err)
	}
	pid, file := besides(t)
	target, err := process.TargetOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, then, then); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		past *recognize.Past
		want bool
	}{
		"it was recognized":                 {&recognize.Past{Target: target, Instance: "b", Space: space}, true},
		"the port told":                     {&recognize.Past{Target: target, Instance: "b", Space: space, Strict: true}, true},
		"nothing is remembered":             {nil, false},
		"it was recognized in another boot": {&recognize.Past{Target: target, Instance: "b", Space: "elsewhere"}, false},
		"another had its pid":               {&recognize.Past{Target: process.Target{Pid: pid, StartTicks: target.StartTicks - 1}, Instance: "b", Space: space}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := built(t)
			a.cfg.BrokerPIDFile, a.cfg.BrokerAdmin = file, "nats://"+deadPort
			a.memory.Instance, a.memory.Process = "b", row.past
			stopper, err := recognize.Stopper(a.cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			a.stopper, a.process = stopper, probes.NewProcess(&probes.Finder{PIDFile: file}, discard)
			a.expectProcess()
			if got := a.process.Finder.Strict(); got != (row.past != nil && row.past.Strict) {
				t.Errorf("no name alone leads to it: %t", got)
			}
			if got, found := stopper.Target(); found != row.want || found && got != target {
				t.Errorf("the stopper finds %v, %t", got, found)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- a.process.Run(ctx) }()
			defer func() { cancel(); <-ended }()
			for a.process.Snapshot() == (probes.ProcessView{}) {
				<-a.process.Changes()
			}
			if got := a.process.Snapshot().Pid == pid; got != row.want {
				t.Fatalf("%+v", a.process.Snapshot())
			}
			if !row.want {
				return
			}
			who := brokerapi.Report{Instance: "b", StartedAt: then}
			a.recognizeProcess(probes.Up, who) // seen for the first time
			a.identity.askedAt = time.Now()
			a.life0, a.inbox = ctx, make(chan func(), 1)
			a.recognizeProcess(probes.Up, who)
			a.tasks.Wait()
			if why := a.recognizer.Foreign(); why != "" || a.recognizer.Refuses(target) != nil {
				t.Errorf("%s, %v", why, a.recognizer.Refuses(target))
			}
		})
	}
}
