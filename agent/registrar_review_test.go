package agent

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/recovery"
)

// judgedAtOnce is a broker that cannot wait for proof of life, started again after its lease ran
// out, and drained.
func judgedAtOnce(t *testing.T, how string) *outage {
	o, _ := newDead(t)
	o.cfg.FleetLossShare = 0 // each loss is judged alone
	if o.hasty = how == "must be stopped"; !o.hasty {
		o.cfg.Registration = "adopt"
	}
	o.standAs("n2", "a")
	o.establish(0)
	o.takeUp()
	out := o.outcomes[len(o.outcomes)-1]
	o.is(out.decision, recovery.Drained, recovery.ReasonStaleRestart)
	if !out.decision.Review || !strings.Contains(out.decision.Detail, "active again by itself") {
		t.Errorf("not said that it is looked at again: %+v", out.decision)
	}
	return o
}

// look asks as the Keeper does, for so long, and says what stands then.
func (o *outage) look(d time.Duration, meanwhile func()) cluster.State {
	o.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(time.Second) {
		if meanwhile != nil {
			meanwhile()
		}
		o.establish(o.past.memory.LeaseID)
		o.takeUp()
	}
	return *o.snapshot().State
}

func TestABrokerThatCannotWaitIsActiveAgainWhenNobodyLivedOn(t *testing.T) {
	for _, how := range []string{"must be stopped", "registers itself"} {
		for _, c := range []struct {
			name   string
			look   func(o *outage) cluster.State
			mode   recovery.Mode
			reason recovery.Reason
		}{
			{"the peer lingers", func(o *outage) cluster.State { return o.look(peerTTL+10*time.Second, nil) },
				recovery.Active, recovery.ReasonFullClusterRestart},
			{"the peer lives", func(o *outage) cluster.State { return o.look(2*peerTTL, o.renewPeers) },
				recovery.Drained, recovery.ReasonStaleRestart},
			{"the peer lingers still", func(o *outage) cluster.State { return o.look(peerTTL-10*time.Second, nil) },
				recovery.Drained, recovery.ReasonStaleRestart},
			{"another peer comes back after us", func(o *outage) cluster.State {
				o.past.memory.Deadline = time.Now().Add(32 * time.Second)
				o.peer("n3")
				return o.look(peerTTL+10*time.Second, func() { o.renewPeer("n3") })
			}, recovery.Active, recovery.ReasonFullClusterRestart},
			{"the peer comes back after us, with the process that it had", func(o *outage) cluster.State {
				reg, _, err := o.client.Registered(o.t.Context(), "n2")
				if err != nil {
					o.t.Fatal(err)
				}
				if err := o.client.Revoke(o.t.Context(), reg.LeaseID); err != nil {
					o.t.Fatal(err)
				}
				o.peer("n2")
				o.stand("n2", "a", time.Now())
				return o.look(peerTTL, o.renewPeers)
			}, recovery.Active, recovery.ReasonFullClusterRestart},
			{"an operator drains it meanwhile", func(o *outage) cluster.State {
				o.look(5*time.Second, nil)
				if _, err := o.client.PutState(o.t.Context(), "n1", cluster.State{Mode: "drained", Reason: "disk swap", By: recovery.ByOperator, At: time.Now()}, o.snapshot().StateRevision); err != nil {
					o.t.Fatal(err)
				}
				o.past.mode = recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
				return o.look(2*peerTTL, nil)
			}, recovery.Drained, "disk swap"},
			{"another process of it answers meanwhile", func(o *outage) cluster.State {
				o.look(5*time.Second, nil)
				o.past.instance = "process-3"
				return o.look(2*peerTTL, nil)
			}, recovery.Drained, recovery.ReasonStaleRestart},
			{"recovery is paused meanwhile", func(o *outage) cluster.State {
				o.onPause = true
				defer func() { o.onPause = false }()
				return o.look(2*peerTTL, nil)
			}, recovery.Drained, recovery.ReasonStaleRestart},
			{"recovery was paused meanwhile", func(o *outage) cluster.State {
				o.onPause = true
				o.look(2*peerTTL, nil)
				o.onPause = false
				return o.look(20*time.Second, nil)
			}, recovery.Active, recovery.ReasonFullClusterRestart},
		} {
			inBubble(t, how+", "+c.name, func(t *testing.T) {
				o := judgedAtOnce(t, how)
				if s := c.look(o); s.Mode != string(c.mode) || s.Reason != string(c.reason) {
					t.Errorf("%s (%s), want %s (%s)", s.Mode, s.Reason, c.mode, c.reason)
				}
			})
		}
	}
}

// What etcd wrote stands, whether or not we were told so.
func TestADrainIsLookedAtAgainWhateverBecameOfItsAnswer(t *testing.T) {
	for _, c := range []struct {
		name  string
		first func(o *outage)
	}{
		{"it is lost", func(o *outage) {
			o.line = directLine{cluster.Over(cluster.Config{}, &deafConn{Conn: o.store.Conn(nil), lose: true}, nil)}
			if _, err := o.Establish(o.t.Context(), 0, false); err == nil {
				o.t.Error("established without an answer")
			}
		}},
		{"the proof after it fails", func(o *outage) {
			if _, err := o.once(o.t.Context(), o.client, 0); err != nil {
				o.t.Error(err)
			}
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			o, _ := newDead(t)
			o.cfg.FleetLossShare, o.hasty = 0, true
			o.standAs("n2", "a")
			c.first(o)
			o.establish(0)
			o.takeUp()
			out := o.outcomes[len(o.outcomes)-1]
			o.is(out.decision, recovery.Drained, recovery.ReasonStaleRestart)
			if !out.decision.Review || !strings.Contains(out.decision.Detail, "active again by itself") {
				t.Errorf("not said that it is looked at again: %+v", out.decision)
			}
			if s := o.look(peerTTL+10*time.Second, nil); s.Mode != "active" || s.Reason != string(recovery.ReasonFullClusterRestart) {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestALossOfABrokerThatCannotWaitIsLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(t, "drain")
		o.hasty, o.cfg.FleetLossShare = true, 0
		o.lose()
		o.establish(o.first.LeaseID)
		o.takeUp()
		o.is(o.outcomes[len(o.outcomes)-1].decision, recovery.Drained, recovery.ReasonRegistrationExpired)
		if s := o.look(peerTTL+10*time.Second, nil); s.Mode != "active" || s.Reason != string(recovery.ReasonFleetExpired) {
			t.Errorf("%+v", s)
		}
	})
}

func TestADrainWhoseAnswerWasLostInAPauseIsSaidToBeLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := newDead(t)
		o.cfg.FleetLossShare, o.hasty = 0, true
		o.standAs("n2", "a")
		o.line = directLine{cluster.Over(cluster.Config{}, &deafConn{Conn: o.store.Conn(nil), lose: true}, nil)}
		_, _ = o.Establish(o.t.Context(), 0, false)
		o.onPause = true
		o.establish(0)
		o.takeUp()
		out := o.outcomes[len(o.outcomes)-1]
		if !out.decision.Review {
			t.Errorf("in the pause: %+v", out.decision)
		}
		o.onPause = false
		o.look(10*time.Second, nil)
		for _, x := range o.outcomes[1:] {
			if strings.Contains(x.decision.Detail, "active again by itself") {
				return
			}
		}
		t.Error("never said that it is looked at again")
	})
}
