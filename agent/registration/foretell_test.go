package registration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// foretells is what check says of the start that o's sidecar is about to make.
func (o *outage) foretells() (Outcome, error) {
	o.t.Helper()
	d := o.Deps
	d.Run, d.Life = "foretold", func() Life {
		l := o.now()
		if l.Mode.Mode != "" {
			l.Past.Mode, l.Past.Reason, l.Past.By = string(l.Mode.Mode), string(l.Mode.Reason), l.Mode.By
		}
		return Life{Name: l.Name, Past: l.Past, Instance: l.Instance, Boot: l.Boot, Data: l.Data, PauseEnds: l.PauseEnds, Recalls: true}
	}
	r := New(d)
	revision, leases := o.holds()
	var renewals sync.WaitGroup
	ctx, cancel := context.WithCancel(o.t.Context())
	renewals.Go(func() {
		for each := time.NewTicker(time.Second); ; {
			select {
			case <-each.C:
				o.renewPeers()
			case <-ctx.Done():
				return
			}
		}
	})
	out, err := r.Foretell(ctx, o.client, 5*time.Second)
	cancel()
	renewals.Wait()
	if r, n := o.holds(); r != revision || n != leases {
		o.t.Errorf("revision %d and %d leases, before %d and %d: something was written", r, n, revision, leases)
	}
	return out, err
}

// Which it is, is seen by the lease within the time between two looks.
func TestAStartWithAStateDirectoryThatWasCopiedOrMovedIsForetold(t *testing.T) {
	for _, row := range []struct {
		name   string
		moved  bool
		alive  bool // the other sidecar renews
		leader bool // changes between the looks, which tells nothing
		want   recovery.Reason
		err    error
		within time.Duration
	}{
		{"a copy of one that lives", true, true, false, "", lease.ErrConflict, time.Second},
		{"moved", true, false, false, recovery.ReasonFastRestart, nil, time.Second},
		{"a new leader", true, true, true, "", lease.ErrDeferred, time.Second},
		{"where it was", false, true, false, recovery.ReasonFastRestart, nil, -time.Second},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			born := time.Now()
			o.Clock = func() lease.Instant { return lease.Instant(time.Since(born)) }
			apart := recovery.LooksApart(o.Config.RenewInterval)
			o.past.Value, o.Run, o.stood = valueOfRun("before"), "before", false
			o.establish(o.first.LeaseID)
			o.Moved, o.stood, o.past.Instance = row.moved, false, "process-2"
			ctx, end := context.WithCancel(t.Context())
			var other sync.WaitGroup
			other.Go(func() {
				for ctx.Err() == nil {
					select {
					case <-time.After(o.Config.RenewInterval):
					case <-ctx.Done():
					}
					if row.alive && ctx.Err() == nil {
						o.renew()
					}
					if row.leader && time.Since(born) > apart/2 {
						o.store.ChangeLeader(0)
					}
				}
			})
			began := time.Now()
			out, err := o.foretells()
			took := time.Since(began)
			end()
			other.Wait()
			if !errors.Is(err, row.err) || (err == nil) != (row.err == nil) || err == nil && out.Decision.Row != row.want {
				t.Errorf("%s by %s, %v", out.Decision, out.Decision.Row, err)
			}
			if took > apart+row.within || row.within > 0 && took < apart {
				t.Errorf("it took %v, with %v between two looks", took, apart)
			}
		})
	}
}

func TestWhatIsForetoldOfAStartIsWhatItDecides(t *testing.T) {
	restarted := func(o *outage) { o.past.Instance = "process-2" }
	for _, row := range []struct {
		name   string
		outage func(t *testing.T) *outage
		change func(o *outage)
		want   recovery.Reason // the row
	}{
		{"back within the TTL", nil, restarted, recovery.ReasonFastRestart},
		{"back after the TTL, others lived on", nil, func(o *outage) { restarted(o); o.lose() }, recovery.ReasonStaleRestart},
		{"back after the TTL, alone", nil, func(o *outage) { restarted(o); o.lose(); o.everybodyElseGoes() }, recovery.ReasonFullClusterRestart},
		{"the same process, registered", nil, func(*outage) {}, recovery.RowSurvived},
		{"the same process, its registration lost", nil, func(o *outage) { o.lose() }, recovery.ReasonRegistrationExpired},
		{"the same process, everybody's lost", nil, func(o *outage) { o.lose(); o.everybodyElseGoes() }, recovery.ReasonFleetExpired},
		{"its state directory is lost, and others lived on", nil, func(o *outage) { o.forgets(); o.lose() }, recovery.ReasonStaleRestart},
		{"its state directory is lost, and everybody's registration was", nil, func(o *outage) { o.forgets(); o.everybodyElseGoes(); o.peer("n2") }, recovery.ReasonFullClusterRestart},
		{"the same process, lost, and the era was written again with its number", nil, func(o *outage) { o.lose(); o.writeEra(`{"era":1}`) }, recovery.ReasonRegistrationExpired},
		{"adopted, lost, and others lived on", nil, func(o *outage) { o.Config.Registration = "adopt"; o.lose() }, recovery.ReasonRegistrationExpired},
		{"adopted, lost, and whoever is registered came later", nil, func(o *outage) {
			o.Config.Registration = "adopt"
			o.everybodyElseGoes()
			o.putValue(o.client.Keys().Registration("n3"), "{}")
		}, recovery.ReasonFleetExpired},
		{"adopted, lost, and its broker wrote it again", nil, func(o *outage) {
			o.Config.Registration = "adopt"
			o.lose()
			o.putValue(o.client.Keys().Registration("n1"), "{}")
		}, recovery.ReasonRegistrationExpired},
		{"adopted, everybody's lost, and its broker wrote it again", nil, func(o *outage) {
			o.Config.Registration = "adopt"
			o.everybodyElseGoes()
			o.putValue(o.client.Keys().Registration("n1"), "{}")
		}, recovery.ReasonFleetExpired},
		{"adopted, lost, its broker wrote it again, and its record cannot be read", nil, func(o *outage) {
			o.Config.Registration = "adopt"
			o.lose()
			o.putValue(o.client.Keys().Registration("n1"), "{}")
			o.garble("n1")
		}, recovery.ReasonUnreadableRecord},
		{"adopted, and its record cannot be read", nil, func(o *outage) { o.Config.Registration = "adopt"; o.garble("n1") }, recovery.RowSurvived},
		{"policy reconnect", nil, func(o *outage) { o.Config.SessionExpiredPolicy = "reconnect"; o.lose() }, recovery.RowReconnected},
		{"policy shutdown", nil, func(o *outage) { o.Config.SessionExpiredPolicy = "shutdown"; o.lose() }, recovery.ReasonSessionExpired},
		{"drained by an operator", nil, func(o *outage) {
			restarted(o)
			o.past.Mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
			if _, err := o.client.PutState(o.t.Context(), "n1", *StateOf(o.past.Mode), o.snapshot().StateRevision); err != nil {
				o.t.Fatal(err)
			}
		}, recovery.RowKept},
		{"a state file that cannot be read", nil, func(o *outage) { restarted(o); o.past.Past.Distrust = "torn" }, recovery.ReasonCorruptState},
		{"a restored backup", nil, func(o *outage) { restarted(o); o.past.Past.Revision = 1 << 40 }, recovery.ReasonRestoredBackup},
		{"another disk, empty", nil, func(o *outage) {
			restarted(o)
			o.past.Past.Data, o.past.Data = dataBefore, dataAnother
		}, recovery.ReasonDataMissing},
		{"another incarnation is registered", nil, func(o *outage) { restarted(o); o.past.Past.Incarnation = "another" }, recovery.RowConflict},
		{"never registered", func(t *testing.T) *outage { return installed(t, "/default/a") }, func(*outage) {}, recovery.ReasonFirstRegistration},
		{"never registered, with what is another's", func(t *testing.T) *outage { return installed(t, "/default/a") },
			func(o *outage) { o.assign("n2", "/default/a") }, recovery.ReasonUnknownData},
		{"to join", func(t *testing.T) *outage { return installed(t) }, func(o *outage) { o.Config.Join = true }, recovery.ReasonJoin},
		{"the first boot", func(t *testing.T) *outage { return installed(t) }, func(o *outage) { o.past.Boot = recovery.BootFacts{} }, recovery.ReasonBoot},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			o := (*outage)(nil)
			if row.outage != nil {
				o = row.outage(t)
			} else {
				o = newOutage(t, "drain")
			}
			o.stood = false // another process starts
			row.change(o)
			out, err := o.foretells()
			if err != nil || out.Decision.Row != row.want {
				t.Errorf("foretold %s by %s, %v; want %s", out.Decision, out.Decision.Row, err, row.want)
			}
			before := o.snapshot()
			_, err = o.Establish(t.Context(), 0, false)
			after := o.snapshot()
			if alone := before.Peer.CreateRevision == 0 && (row.want == recovery.ReasonFleetExpired || row.want == recovery.ReasonFullClusterRestart); alone != (after.Era.N > before.Era.N) && row.outage == nil {
				t.Errorf("the era was %d and is %d", before.Era.N, after.Era.N)
			}
			switch {
			case errors.Is(err, lease.ErrConflict):
				if row.want != recovery.RowConflict {
					t.Errorf("decided %v", err)
				}
			case errors.Is(err, lease.ErrShutdown):
				if row.want != recovery.ReasonSessionExpired {
					t.Errorf("decided %v", err)
				}
			case err != nil:
				t.Error(err)
			default:
				out := o.outcomes[len(o.outcomes)-1]
				if d := out.Decision; d.Row != row.want || out.StateRevision != after.StateRevision {
					t.Errorf("decided %s by %s, in the state key at %d, which is at %d", d, d.Row, out.StateRevision, after.StateRevision)
				}
			}
		})
	}
}

func TestWhatAStartWouldWaitForIsForetold(t *testing.T) {
	inBubble(t, "the end of a pause", func(t *testing.T) {
		o := newOutage(t, "drain")
		o.past.Instance = "process-2"
		o.lose()
		o.onPause = true
		if _, err := o.foretells(); !errors.Is(err, lease.ErrDeferred) || !strings.Contains(err.Error(), "recovery is paused") {
			t.Errorf("%v", err)
		}
		o.onPause = false
		if out, err := o.foretells(); err != nil || out.Decision.Row != recovery.ReasonStaleRestart {
			t.Errorf("once it is over: %+v, %v", out, err)
		}
	})
	t.Run("the broker's list of topics", func(t *testing.T) {
		o := installed(t)
		o.Serves = answers(nil, errors.New("timeout"))
		if _, err := o.foretells(); !errors.Is(err, lease.ErrDeferred) || !strings.Contains(err.Error(), "what the broker serves is not known") {
			t.Errorf("%v", err)
		}
	})
}

// forgets has the sidecar start with its broker, and with an empty state directory.
func (o *outage) forgets() {
	o.restartsAs("process-2")
	o.past.Past = Past{Incarnation: "new"}
	o.past.Value = []byte(`{"incarnation":"new"}`)
}
