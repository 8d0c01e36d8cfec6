package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery"
)

// goer is a broker that renews its own lease, and whose process is watched.
type goer struct {
	*leaver
	all []departure // that were noted
}

// inGoer runs claim beside the sidecar of a broker that may be stopped without a word.
func inGoer(t *testing.T, change func(c *Config), claim func(g *goer)) {
	t.Helper()
	living, err := process.TargetOf(1)
	if err != nil {
		t.Fatal(err)
	}
	can := brokerapi.Capabilities{FencesItself: true, Unload: true, Registers: true}
	settings := func(c *Config) {
		stoppable(c)
		c.Fence, c.RestartGrace, c.Guard = []string{"ready"}, 3*time.Second, "off"
		if change != nil {
			change(c)
		}
	}
	inLifeOf(t, can, settings, func(l *sidecarLife) { l.joins = true }, func(l *sidecarLife) {
		g := &goer{leaver: &leaver{sidecarLife: l}}
		l.note = func(_ context.Context, d departure) error {
			if g.fails == nil {
				g.all = append(g.all, d)
			}
			return g.fails
		}
		who, _ := l.identity.get()
		l.inLoop(func() {
			l.guard, l.served = nil, living
			l.recognizer.settle(living, who.Instance, isBroker, "")
		})
		claim(g)
	})
}

// deletes is the broker that deletes its registration, as the registrar finds it.
func (g *goer) deletes() {
	g.inLoop(func() {
		g.goes(g.grant.Epoch, g.keyAt+1)
	})
}

// Its ports are closed before etcd has said whether its session lives.
func TestADeletionCountsAsOfWhenItWasSeen(t *testing.T) {
	for _, lives := range []bool{true, false} {
		inGoer(t, nil, func(g *goer) {
			g.lives = func(ctx context.Context, _ departure) (bool, error) {
				sleep(ctx, noteTimeout/2)
				return lives, nil
			}
			g.set(func() { g.storeErr = true })
			g.inLoop(func() { g.registrationSeen(keySeen{id: "n1", revision: g.keyAt + 1}) })
			g.set(func() { g.frozen = true })
			g.until(g.age() + 5*time.Second)
			g.dies()
			g.until(g.age() + 5*time.Second)
			if left := len(g.all) == 1 && g.all[0].deleted; left != lives {
				t.Errorf("its session lives %t: noted %+v", lives, g.all)
			}
		})
	}
}

func TestABrokerThatDeletesItsRegistrationAndEndsHasLeft(t *testing.T) {
	putAgain := func(g *goer) {
		g.inLoop(func() { g.seenKey = &keySeen{id: "n1", kv: &cluster.KV{}, revision: g.keyAt + 2} })
	}
	for _, row := range []struct {
		name string
		do   func(g *goer)
		want string // notes, in order
	}{
		{"stopped by its supervisor", func(g *goer) {
			g.deletes()
			g.until(g.age() + 5*time.Second)
			if len(g.all) > 0 {
				g.t.Error("noted while its process may still be there")
			}
			g.dies()
		}, "left"},
		{"crashed", func(g *goer) { g.dies() }, "crash"},
		{"it did not end in its time, and crashed later", func(g *goer) {
			g.deletes()
			g.until(g.age() + g.cfg.LeaveTimeout + time.Minute)
			g.dies()
		}, "crash"},
		{"the next process took its key away", func(g *goer) { g.dies(); g.deletes() }, "crash"},
		{"another session, and a crash", func(g *goer) { g.deletes(); putAgain(g); g.until(g.age() + time.Second); g.dies() }, "crash"},
		{"another session, and a crash at once", func(g *goer) { g.deletes(); putAgain(g); g.dies() }, "crash"},
		{"registered again by its sidecar, and a crash", func(g *goer) {
			g.deletes()
			g.inLoop(g.lookAgain)
			g.until(g.age() + time.Second)
			g.dies()
		}, "crash"},
		{"drained by an operator before", func(g *goer) {
			g.inLoop(func() {
				g.setMode(recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}, g.modeRev+1, "")
			})
			g.deletes()
			g.dies()
		}, ""},
		{"ill before", func(g *goer) {
			g.set(func() { g.frozen = true })
			g.until(g.age() + 10*time.Second)
			g.deletes()
			g.set(func() { g.frozen = false })
			g.dies()
		}, "crash"},
		{"stopped by its sidecar", func(g *goer) {
			g.deletes()
			g.inLoop(func() { g.fencing.ladder.Stopped = recovery.Done })
			g.dies()
		}, "crash"},
		{"after 'holdfast leave'", func(g *goer) {
			if err := g.asks(5*time.Second, false); err != nil {
				g.t.Fatal(err)
			}
			g.deletes()
			g.dies()
		}, "stop"},
		{"another registration than ours", func(g *goer) { g.inLoop(func() { g.goes(g.grant.Epoch+1, g.keyAt+1) }); g.dies() }, "crash"},
		{"its process is not watched", func(g *goer) { g.inLoop(func() { g.served = process.Target{} }); g.deletes(); g.dies() }, "crash"},
		{"etcd does not take the note at first", func(g *goer) {
			g.deletes()
			g.fails = errors.New("etcd does not answer")
			g.dies()
			g.until(g.age() + 5*time.Second)
			g.fails = nil
		}, "left"},
		{"it is registered again by then", func(g *goer) {
			g.deletes()
			g.fails = errNothingToLeave
			g.dies()
			g.until(g.age() + 5*time.Second)
			g.fails = nil
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			inGoer(t, nil, func(g *goer) {
				row.do(g)
				g.until(g.age() + 10*time.Second)
				var got []string
				for _, d := range g.all {
					switch {
					case d.crash:
						got = append(got, "crash")
					case d.stop:
						got = append(got, "stop")
					case d.deleted:
						got = append(got, "left")
					}
				}
				if strings.Join(got, " ") != row.want {
					t.Errorf("noted %v, want %q", got, row.want)
				}
				if why := g.why("registration"); row.want == "left" && (strings.Contains(why, "broker_down") || !strings.Contains(why, "lost:left")) {
					t.Errorf("it counts as lost: %s", why)
				}
				g.set(func() { g.storeErr = false })
				g.inLoop(func() { g.served = process.Target{} })
				g.start()
				g.until(g.age() + 30*time.Second)
				if row.want != "" && row.want != "crash" && (!g.registered() || len(g.notReady()) > 0 || g.going.pending()) {
					t.Errorf("the next process: registered %v, not ready %v", g.registered(), g.notReady())
				}
			})
		})
	}
}

// It takes longer to end than its lease lasts: it has more to give up than usual.
func TestTheEndOfABrokerThatGoesIsNotCutShort(t *testing.T) {
	inGoer(t, func(c *Config) { c.Fence, c.LeaveTimeout = []string{"ready", "stop"}, 3*time.Minute }, func(g *goer) {
		g.deletes()
		g.set(func() { g.frozen = true }) // its admin API is closed
		g.until(g.age() + 2*time.Minute)
		if len(g.stops) > 0 || g.quiesces > 0 || g.revokes > 0 {
			t.Errorf("stopped at %v, %d quiesces, %d revokes", g.stops, g.quiesces, g.revokes)
		}
		g.dies()
		g.until(g.age() + 5*time.Second)
		if len(g.all) != 1 || !g.all[0].deleted {
			t.Errorf("noted %+v", g.all)
		}
	})
}

// One command may stop both: the sidecar is the first to end.
func TestASidecarThatIsStoppedWhileItsBrokerGoesNotesIt(t *testing.T) {
	for _, ended := range []bool{false, true} {
		inGoer(t, nil, func(g *goer) {
			g.deletes()
			if ended {
				g.fails = errors.New("etcd does not answer")
				g.dies()
				g.until(g.age() + 3*time.Second)
				g.fails = nil
			}
			g.stopAsked()
			g.halt()
			if err := g.leave(); err != nil {
				t.Error(err)
			}
			if len(g.all) != 1 || !g.all[0].deleted || g.all[0].crash || g.revokes > 0 {
				t.Errorf("ended %t: noted %+v, %d revokes", ended, g.all, g.revokes)
			}
			if got := g.why("agent"); !strings.HasSuffix(got, "stopped:left") {
				t.Errorf("ended %t: the last word is %q", ended, got)
			}
		})
	}
}

// What etcd holds decides.
func TestTheNoteOfABrokerThatHasDeletedItsRegistration(t *testing.T) {
	gone := func(a adopted) departure {
		d := a.departs()
		d.deletes, d.deleted = true, true
		return d
	}
	unseen := func(a adopted) departure { // the sidecar is stopped with it
		d := a.departs()
		d.deletes = true
		return d
	}
	for _, row := range []struct {
		name   string
		change func(a adopted)
		note   func(a adopted) departure
		says   string
	}{
		{"deleted", func(a adopted) { a.del("n1") }, gone, ""},
		{"deleted, and its session has ended since", func(a adopted) { a.del("n1"); a.lose() }, gone, ""},
		{"deleted a moment ago", func(a adopted) { a.del("n1") }, unseen, ""},
		{"it still stands", func(adopted) {}, gone, "the registration is not the one"},
		{"lost with its session", func(a adopted) { a.lose() }, unseen, "the registration is not the one"},
		{"of a broker that crashed", func(a adopted) { a.del("n1") }, func(a adopted) departure { d := unseen(a); d.crash = true; return d }, "the registration is not the one"},
		{"its storage does not fence it", func(a adopted) { a.del("n1") }, adopted.departs, "the registration is not the one"},
		{"the next process is registered", func(a adopted) { a.del("n1"); a.put("n1", a.session()) }, gone, "the registration is not the one"},
		{"drained meanwhile", func(a adopted) { a.del("n1"); a.set("drained", recovery.ByOperator) }, gone, "it is drained"},
		{"another sidecar's", func(a adopted) { a.del("n1") }, func(a adopted) departure { d := gone(a); d.incarnation = "another"; return d }, "not ours"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAdopted(t, func(c *Config) { c.SessionExpiredPolicy = "drain" })
			row.change(a)
			err := noteLeft(t.Context(), a.client, row.note(a))
			if row.says == "" && err != nil || row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
				t.Fatalf("%v, want %q", err, row.says)
			}
			if row.says != "" {
				return
			}
			a.backAs(nil)
			a.put("n1", a.session())
			a.establish(a.first.LeaseID)
			a.decided(recovery.ReasonPlannedRestart, recovery.Active)
			if noted(a.snapshot()) {
				t.Error("the note stays, and would excuse a crash")
			}
		})
	}
}

// The note rests on what was read: who registers between loses nothing.
func TestTheNoteOfADeletedRegistrationIsRefusedWhereItIsBack(t *testing.T) {
	a := newAdopted(t, nil)
	a.del("n1")
	seen := a.snapshot()
	a.put("n1", a.session())
	_, err := a.client.Leave(t.Context(), cluster.LeaveRequest{Seen: seen, Epoch: a.first.Epoch, LeaseID: a.first.LeaseID, Deleted: true, Left: cluster.Left{At: time.Now(), Epoch: a.first.Epoch}})
	if !errors.Is(err, cluster.ErrChanged) || noted(a.snapshot()) {
		t.Errorf("%v, want that it is refused", err)
	}
}

func TestWhoDeletesItsRegistrationIsToldOfOnce(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(a adopted)
		told   []int64
	}{
		{"it did", func(a adopted) { a.del("n1") }, []int64{1}},
		{"it did, in an outage that is judged later", func(a adopted) { a.del("n1"); a.registrar.up = func(string) bool { return false } }, []int64{1}},
		{"it did, in a pause", func(a adopted) { a.del("n1"); a.onPause = true }, []int64{1}},
		{"its session ended", func(a adopted) { a.lose() }, nil},
		{"nothing happened", func(adopted) {}, nil},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			a := newAdopted(t, func(c *Config) { c.SessionExpiredPolicy = "drain" })
			var told []int64
			a.registrar.goes = func(_ context.Context, epoch, revision int64) {
				if revision <= epoch {
					t.Errorf("away at revision %d, and registered at %d", revision, epoch)
				}
				told = append(told, epoch-a.first.Epoch+1)
			}
			row.change(a)
			for range 3 {
				if _, err := a.Establish(t.Context(), a.first.LeaseID, false); err != nil && !errors.Is(err, lease.ErrDeferred) {
					t.Fatal(err)
				}
			}
			if !slices.Equal(told, row.told) {
				t.Errorf("told %v, want %v", told, row.told)
			}
		})
	}
}

// A broker that was killed and is back at once deletes the key of the process before, and puts
// its own.
func TestWhoTakesItsRegistrationOverUnderALivingSessionIsNotStale(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(a adopted)
		row    recovery.Reason
		mode   recovery.Mode
	}{
		{"its session lives", func(adopted) {}, recovery.ReasonFastRestart, recovery.Active},
		{"its session has ended", func(a adopted) { a.lose() }, recovery.ReasonStaleRestart, recovery.Drained},
		{"drained by an operator", func(a adopted) { a.set("drained", recovery.ByOperator) }, recovery.RowKept, recovery.Drained},
		{"it had left", func(a adopted) { a.leave() }, recovery.ReasonPlannedRestart, recovery.Active},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := newAdopted(t, func(c *Config) { c.SessionExpiredPolicy = "drain" })
			row.change(a)
			if a.snapshot().Registration != nil {
				a.del("n1")
			}
			a.backAs(nil)
			a.put("n1", a.session())
			a.establish(a.first.LeaseID)
			a.decided(row.row, row.mode)
		})
	}
}

func TestADeposedLeaderIsNotBelievedThatASessionLives(t *testing.T) {
	o, l := newLiedTo(t)
	client, err := o.line.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lives, err := sessionLives(t.Context(), client, "n1", o.first.LeaseID); !lives || err != nil {
		t.Errorf("%t, %v", lives, err)
	}
	l.read = func(r *pb.RangeResponse) { r.Header.RaftTerm++ }
	if _, err := sessionLives(t.Context(), client, "n1", o.first.LeaseID); !isOnly(err, lease.ErrUnproven) {
		t.Errorf("%v, want that it is not believed", err)
	}
}
