package agent

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/agent/control"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

func TestABrokerThatRestartsWithinTheTTLKeepsItsTopicsUnderItsNewID(t *testing.T) {
	for _, row := range []struct {
		name       string
		down, late time.Duration
		topics     int
	}{
		{"at once", 0, 0, 3},
		{"after 5 s", 5 * time.Second, 0, 3},
		{"after 5 s, with more topics than a transaction takes", 5 * time.Second, 0, 250},
		{"after 5 s, and registers itself 8 s later", 5 * time.Second, 8 * time.Second, 3},
		{"at once, and registers itself 8 s later", 0, 8 * time.Second, 3},
		{"at once, and registers itself 45 s later", 0, 45 * time.Second, 3},
		{"past the fence point", 25 * time.Second, 0, 3},
		{"without topics", time.Second, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			attached(t, someTopics(row.topics), func(n *numbered, _ func(error) error) {
				before := n.status()
				n.kill()
				time.Sleep(row.down)
				n.start("22", row.late)
				if row.late > 0 {
					time.Sleep(row.late)
				}
				// Its new name is in the status a moment before the epoch.
				s := n.becomes("ready as 22, registered anew", func(s control.Status) bool {
					return s.Ready.OK && s.Registration.ID == "22" && s.Epoch > before.Epoch
				})
				if s.Mode != "active" || s.Boot.Reason != "fast_restart" || s.Boot.Kind != "restart" || s.BrokerID != "b1" {
					t.Errorf("%+v", s)
				}
				time.Sleep(2 * time.Minute) // past both own leases of the broker
				if s := n.status(); !s.Ready.OK || s.Topics.Served != row.topics || s.Registration.State != "held" {
					t.Errorf("later: %+v", s)
				}
				if _, at, _, _ := n.get(n.keys.Registration("11")); at != 0 {
					t.Error("the process before is still registered")
				}
				if _, at, _, _ := n.get(n.keys.State("11")); at != 0 || len(n.assigned("11")) > 0 {
					t.Errorf("the process before has a state of revision %d and %d topics", at, len(n.assigned("11")))
				}
				if member, _, _, _ := n.get(n.keys.Member("b1")); !strings.Contains(member, `"registered_as":"22"`) {
					t.Errorf("the member record is %s", member)
				}
				n.wantNoHarm()
				if len(n.taken()) > 0 {
					t.Errorf("given to others: %v", n.taken())
				}
				for topic, loads := range n.loadsOf() {
					if loads != 2 { // once in each life
						t.Errorf("%s was loaded %d times", topic, loads)
					}
				}
			})
		})
	}
}

func TestABrokerThatRestartsAfterTheTTLIsDrainedUnderItsNewIDInTheRevisionThatBindsIt(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		n.kill()
		time.Sleep(40 * time.Second)
		if len(n.taken()) != 3 {
			t.Fatalf("the cluster took %v", n.taken())
		}
		n.start("22", 2*time.Second)
		s := n.becomesIn(recovery.Drained, recovery.ReasonStaleRestart, "22")
		_, state, _, _ := n.get(n.keys.State("22"))
		_, bound, _, _ := n.get(n.keys.Registration("22"))
		if state != bound || state == 0 || s.Ready.OK {
			t.Errorf("state of revision %d, registration bound in %d, ready: %v", state, bound, s.Ready.OK)
		}
		time.Sleep(2 * time.Minute)
		if s := n.status(); s.Mode != "drained" || s.Ready.OK || s.Registration.State != "held" {
			t.Errorf("later: %+v", s)
		}
		n.order("activate")
		n.becomesReadyAs("22")
		n.wantNoHarm()
	})
}

// The gate does not close at a restart this quick, so the former lease is renewed meanwhile.
func TestWhatABrokerHadThatDoesNotRegisterItselfIsForOthers(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		n.kill()
		n.start("22", 10*time.Minute)
		time.Sleep(70 * time.Second) // twice the TTL, and a little
		if s := n.status(); len(n.taken()) != 3 || s.Ready.OK || s.Registration.ID == "22" {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Minute)
		n.becomesIn(recovery.Drained, recovery.ReasonStaleRestart, "22")
		n.wantNoHarm()
	})
}

// An etcd that is full, or cannot keep up, goes on to renew leases. Nobody else takes what
// a process serves that is registered half way.
func TestAHandoverThatEtcdHoldsUpTakesNothingFromTheProcessThatServes(t *testing.T) {
	for _, held := range []time.Duration{20 * time.Second, 40 * time.Second, 5 * time.Minute} {
		t.Run(held.String(), func(t *testing.T) {
			attached(t, someTopics(250), func(n *numbered, _ func(error) error) {
				n.store.Observe(func(_ etcd.View, c etcd.Change) {
					for _, e := range c.Events {
						if strings.HasPrefix(e.KV.Key, n.keys.Assignments("22")+"n/") {
							n.full.Store(true)
						}
					}
				})
				n.kill()
				n.start("22", 0)
				n.becomes("held up", func(control.Status) bool { return n.full.Load() })
				time.Sleep(held)
				if got := n.holds(); len(got) != 100 || n.status().Ready.OK {
					t.Errorf("held up, it serves %d topics, ready: %v", len(got), n.status().Ready.OK)
				}
				n.store.Observe(nil)
				n.full.Store(false)
				n.becomesReadyAs("22")
				n.becomes("whole", func(s control.Status) bool { return s.Topics.Served == 250 })
				if taken := n.taken(); len(taken) > 0 {
					t.Errorf("given to others: %v", taken)
				}
				n.wantNoHarm()
			})
		})
	}
}

// The answer to the handover is the last that is lost before the sidecar is cut off: what
// was proven of the process before it was given topics proves nothing any more.
func TestAProcessThatMayHaveBeenGivenTopicsIsFencedAgain(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		begun := n.handoverBegins("22")
		n.set(func() {
			n.loses = func(method string) bool {
				n.cut = n.cut || begun() && strings.HasSuffix(method, "/Txn")
				return n.cut
			}
		})
		n.kill()
		time.Sleep(25 * time.Second) // past the fence point
		n.start("22", 0)
		n.becomes("cut off", func(control.Status) bool { return begun() })
		time.Sleep(10 * time.Second)
		if s := n.status(); len(n.holds()) != 3 || s.Attachment != "detached" || s.Registration.ID != "11" {
			t.Fatalf("it serves %v: %+v", n.holds(), s)
		}
		time.Sleep(15 * time.Second)
		if got := n.holds(); len(got) > 0 {
			t.Errorf("past the fence point it serves %v", got)
		}
		time.Sleep(time.Minute)
		n.set(func() { n.cut, n.loses = false, nil })
		n.becomesIn(recovery.Drained, recovery.ReasonStaleRestart, "22")
		n.wantNoHarm()
	})
}

// The answer to the first part of a handover is lost, and no lease is granted any more, while the lease
// of the process before is renewed: the one that the new process was put under runs out.
func TestAProcessMayServeNoLongerThanTheLeaseThatAHandoverMayHavePutItUnder(t *testing.T) {
	attached(t, someTopics(250), func(n *numbered, _ func(error) error) {
		begun, lost := n.handoverBegins("22"), false
		n.set(func() {
			n.loses = func(method string) bool {
				first := begun() && !lost && strings.HasSuffix(method, "/Txn")
				lost = lost || first
				return first || lost && strings.HasSuffix(method, "/LeaseGrant")
			}
		})
		n.kill()
		n.start("22", 0)
		n.becomes("handed over", func(control.Status) bool { return begun() })
		time.Sleep(15 * time.Second)
		if s := n.status(); s.Attachment == "detached" || s.Lease.FailureStreak > 0 || s.Registration.ID != "11" {
			t.Fatalf("the lease of the process before is not renewed: %+v", s)
		}
		time.Sleep(16 * time.Second)
		if s := n.status(); len(n.holds()) > 0 || s.Attachment != "detached" {
			t.Errorf("a second before the end of its lease it is %s and serves %v", s.Attachment, n.holds())
		}
		n.set(func() { n.loses = nil })
		time.Sleep(time.Minute)
		n.wantNoHarm()
	})
}

// Its second process ends when a hundred of the topics are its own.
func TestABrokerThatRestartsAgainBeforeItHasAllOfItsTopicsLeavesTheRestToOthers(t *testing.T) {
	attached(t, someTopics(250), func(n *numbered, _ func(error) error) {
		begun := n.handoverBegins("22")
		n.store.SetFault(func(string) error {
			if begun() {
				return errSilence
			}
			return nil
		})
		n.kill()
		n.start("22", 0)
		n.becomes("half handed over", func(control.Status) bool { return begun() })
		n.kill()
		n.store.SetFault(nil)
		if len(n.assigned("11")) != 150 || len(n.assigned("22")) != 100 {
			t.Fatalf("the first has %d and the second %d", len(n.assigned("11")), len(n.assigned("22")))
		}
		time.Sleep(time.Second)
		n.start("33", 0)
		if s := n.becomesReadyAs("33"); s.Boot.Reason != "fast_restart" {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Minute)
		// All that is left is others', or all of it was handed over after all.
		if s := n.status(); !s.Ready.OK || s.Topics.Served != len(n.assigned("33")) || s.Topics.Served+len(n.taken()) != 250 || s.Topics.Served < 100 {
			t.Errorf("given to others: %v, %+v", n.taken(), s)
		}
		n.wantNoHarm()
	})
}

// Nobody scans what was there before it started: what is left under an id that nobody saw
// go is left for ever.
func TestAfterAFullRestartABrokerTakesUpWhatNobodyElseWill(t *testing.T) {
	for _, row := range []struct {
		name   string
		before func(n *numbered) // it comes back
		topics int
	}{
		{"alone", func(*numbered) {}, 3},
		{"after another one that restarted too", func(n *numbered) { n.put(n.keys.Registration("901"), "{}") }, 3},
		{"when a leader has given its topics to others", nil, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
				n.remove(n.keys.Registration("900"))
				n.set(func() { n.leadless = row.before != nil })
				n.kill()
				time.Sleep(time.Minute)
				n.set(func() { n.leadless = false })
				if row.before != nil {
					row.before(n)
				}
				n.start("22", 0)
				s := n.becomesReadyAs("22")
				if s.Mode != "active" || s.Boot.Reason != "full_cluster_restart" {
					t.Errorf("%+v", s)
				}
				time.Sleep(time.Minute)
				if s := n.status(); !s.Ready.OK || s.Topics.Served != row.topics || len(n.assigned("11")) > 0 {
					t.Errorf("left behind: %v, %+v", n.assigned("11"), s)
				}
				if taken := len(n.taken()); taken != 3-row.topics {
					t.Errorf("%d topics were given to others", taken)
				}
				n.wantNoHarm()
			})
		})
	}
}

// One that came back earlier saw the registration of this one go.
func TestAfterAFullRestartALateBrokerLeavesItsTopicsToWhoSawItGo(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		n.remove(n.keys.Registration("900"))
		n.set(func() { n.leadless = true }) // it is slow
		n.kill()
		n.put(n.keys.Registration("901"), "{}")
		time.Sleep(time.Minute)
		n.start("22", 0)
		n.becomes("bound", func(s control.Status) bool { return s.Registration.ID == "22" && s.Lease.ID != "" })
		time.Sleep(10 * time.Second)
		if got := n.assigned("11"); len(got) != 3 || len(n.assigned("22")) > 0 {
			t.Errorf("left are %v", got)
		}
		n.wantNoHarm()
	})
}

func TestAPersonsDrainedIsCarriedToTheNextID(t *testing.T) {
	for _, row := range []struct {
		name string
		down time.Duration
	}{{"within the TTL", 3 * time.Second}, {"after the TTL, when the cluster has deleted it", 40 * time.Second}} {
		t.Run(row.name, func(t *testing.T) {
			attached(t, nil, func(n *numbered, _ func(error) error) {
				n.order("drain")
				n.kill()
				time.Sleep(row.down)
				if _, at, _, _ := n.get(n.keys.State("11")); at == 0 != (row.down > 32*time.Second) {
					t.Errorf("the state of the process before is of revision %d", at)
				}
				n.start("22", 0)
				n.becomesIn(recovery.Drained, "disk swap", "22")
				if state, _, _, _ := n.get(n.keys.State("22")); !strings.Contains(state, `"drained"`) || !strings.Contains(state, `"operator"`) {
					t.Errorf("the state is %s", state)
				}
				n.wantNoHarm()
			})
		})
	}
}

func TestTopicsOfABrokerThatComesBackDrainedAreForOthers(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		n.kill()
		n.put(n.keys.State("11"), `{"mode":"drained","reason":"disk swap","by":"ann"}`) // while it is down
		n.start("22", 0)
		n.becomesIn(recovery.Drained, "disk swap", "22")
		time.Sleep(10 * time.Second)
		if len(n.taken()) != 3 || len(n.assigned("22")) > 0 || len(n.holds()) > 0 {
			t.Errorf("given to others: %v, kept: %v, loaded: %v", n.taken(), n.assigned("22"), n.holds())
		}
		n.wantNoHarm()
	})
}

func TestASidecarThatDiedInTheMiddleOfASuccessionFinishesIt(t *testing.T) {
	for _, row := range []struct {
		name string
		file bool // the state file is that of before
	}{{"and knows what it did", false}, {"and does not know what it did", true}} {
		t.Run(row.name, func(t *testing.T) {
			attached(t, someTopics(3), func(n *numbered, stop func(error) error) {
				file := filepath.Join(n.config.StateDir, "state.json")
				old, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				n.kill()
				n.start("22", 0)
				n.becomesReadyAs("22")
				if err := stop(ErrKilled); !errors.Is(err, ErrKilled) {
					t.Fatal(err)
				}
				if row.file {
					if err := os.WriteFile(file, old, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				again := n.sidecar(nil)
				time.Sleep(time.Second)
				defer func() { _ = again(ErrKilled) }()
				s := n.becomesReadyAs("22")
				if s.Mode != "active" || s.Registration.State != "held" {
					t.Errorf("%+v", s)
				}
				time.Sleep(2 * time.Minute)
				if !n.status().Ready.OK {
					t.Errorf("later: %+v", n.status())
				}
				n.wantNoHarm()
				if len(n.taken()) > 0 || len(n.loadsOf()) != 3 {
					t.Errorf("given to others: %v, loads: %v", n.taken(), n.loadsOf())
				}
			})
		})
	}
}

func TestALostRegistrationComesBackUnderTheSameIDAndDrained(t *testing.T) {
	attached(t, nil, func(n *numbered, _ func(error) error) {
		bytes, _, _, _ := n.get(n.keys.Registration("11"))
		n.remove(n.keys.Registration("11"))
		n.becomesIn(recovery.Drained, recovery.ReasonRegistrationExpired, "11")
		value, bound, _, _ := n.get(n.keys.Registration("11"))
		state, err := n.raw.Get(t.Context(), n.keys.State("11"), clientv3.WithRev(bound)) // the leader deletes it a little later
		if err != nil {
			t.Fatal(err)
		}
		if value != bytes || len(state.Kvs) != 1 || state.Kvs[0].ModRevision != bound || !strings.Contains(string(state.Kvs[0].Value), "drained") {
			t.Errorf("registered %s in %d with the state %v", value, bound, state.Kvs)
		}
		n.wantNoHarm()
	})
}

// Answers of etcd that never come leave a succession half done, and nobody knows.
func TestASuccessionEndsWellWhateverFailsOnTheWay(t *testing.T) {
	attached(t, someTopics(250), func(n *numbered, _ func(error) error) {
		asked := 0
		n.kill()
		n.start("22", 0)
		n.store.SetFault(func(method string) error {
			if asked++; strings.HasSuffix(method, "/Txn") && asked%3 == 0 {
				return errSilence
			}
			return nil
		})
		time.Sleep(15 * time.Second)
		n.store.SetFault(nil)
		if s := n.becomesReadyAs("22"); s.Boot.Reason != "fast_restart" || s.Topics.Served != 250 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Minute)
		if s := n.status(); !s.Ready.OK || len(n.assigned("11")) > 0 || len(n.taken()) > 0 {
			t.Errorf("left behind: %v, given to others: %v, %+v", n.assigned("11"), n.taken(), s)
		}
		n.wantNoHarm()
	})
}

func TestTwoBrokersOfOneNameDoNotTakeFromEachOther(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, _ func(error) error) {
		_, bound, _, leaseID := n.get(n.keys.Registration("11"))
		other := &numbered{t: t, born: n.born, store: n.store, client: n.client, raw: n.raw, keys: n.keys, config: n.config,
			loads: map[string]int{}, servers: map[string]http.Handler{}}
		other.config.StateDir = filepath.Join(n.dir, "other")
		other.start("22", 0)
		stop := other.sidecar(nil)
		time.Sleep(time.Second)
		s := other.becomes("contested", func(s control.Status) bool { return s.Registration.State == "another" })
		if !strings.Contains(s.Summary, ", as 11, not by this sidecar") || !strings.Contains(s.Summary, "--broker-id") {
			t.Errorf("%q", s.Summary)
		}
		time.Sleep(time.Minute)
		if _, now, _, lease := n.get(n.keys.Registration("11")); now != bound || lease != leaseID || len(n.assigned("11")) != 3 || !n.status().Ready.OK {
			t.Errorf("the first is registered in %d under %x with %v", now, lease, n.assigned("11"))
		}
		if other.status().Ready.OK || len(n.assigned("22")) > 0 {
			t.Error("the second one was let in")
		}
		_ = stop(ErrKilled)
		other.kill()
		other.all.Wait()
		n.wantNoHarm()
	})
}

// Nothing tells a lost state directory from another sidecar's: whose lease lives is asked
// for, and when it has ended the cluster has declared the broker dead.
func TestALostStateDirectoryWaitsForTheEndOfTheLeaseThatNobodyKnows(t *testing.T) {
	attached(t, someTopics(3), func(n *numbered, stop func(error) error) {
		n.kill()
		_ = stop(ErrKilled)
		n.config.StateDir = filepath.Join(n.dir, "new")
		n.start("22", 0)
		again := n.sidecar(nil)
		time.Sleep(time.Second)
		n.becomes("contested", func(s control.Status) bool { return s.Registration.State == "another" })
		n.becomesIn(recovery.Drained, recovery.ReasonStaleRestart, "22")
		if len(n.taken()) != 3 {
			t.Errorf("the cluster took %v", n.taken())
		}
		n.wantNoHarm()
		_ = again(ErrKilled)
	})
}

func TestAModeIsCarriedOverDuringAPause(t *testing.T) {
	for _, row := range []struct {
		name string
		down time.Duration
		mode string // what it is while paused, as 22; empty: nothing is decided
	}{{"within the TTL", 2 * time.Second, "active"}, {"after the TTL", 40 * time.Second, ""}} {
		t.Run(row.name, func(t *testing.T) {
			attached(t, nil, func(n *numbered, _ func(error) error) {
				n.order("pause")
				n.kill()
				time.Sleep(row.down)
				n.start("22", 0)
				time.Sleep(10 * time.Second)
				s := n.status()
				if s.Pause == nil {
					t.Fatalf("not paused: %+v", s)
				}
				if row.mode == "" && (s.Registration.ID == "22" || s.Ready.OK) || row.mode != "" && (s.Registration.ID != "22" || s.Mode != row.mode) {
					t.Errorf("while paused: %+v", s)
				}
				n.order("resume")
				if row.mode == "" {
					n.becomesIn(recovery.Drained, recovery.ReasonStaleRestart, "22")
				}
				n.wantNoHarm()
			})
		})
	}
}

func TestAShadowOfABrokerWithANewIDTouchesNothing(t *testing.T) {
	inNumbered(t, func(n *numbered) {
		n.config.Shadow = true
		n.start("11", 0)
		stop := n.sidecar(nil)
		time.Sleep(time.Second)
		n.put(n.keys.Assignment("11", "/n/t"), "null")
		n.becomes("supposed", func(s control.Status) bool { return s.Registration.ID == "11" && s.Mode == "active" })
		_, at, _, own := n.get(n.keys.Registration("11"))
		n.kill()
		n.start("22", 0)
		n.becomes("supposed", func(s control.Status) bool { return s.Registration.ID == "22" && s.Boot.Reason == "fast_restart" })
		if _, now, _, lease := n.get(n.keys.Registration("11")); now != at || lease != own {
			t.Errorf("the registration is of revision %d under %x, want %d under %x", now, lease, at, own)
		}
		if got := n.assigned("11"); len(got) != 1 {
			t.Errorf("the process before has %v", got)
		}
		if state, _, _, _ := n.get(n.keys.State("22")); state != `{"mode":"active","reason":"boot"}` {
			t.Errorf("the state is %s", state)
		}
		if member, _, _, _ := n.get(n.keys.Member("b1")); member != "" {
			t.Errorf("there is a member record: %s", member)
		}
		_ = stop(ErrKilled)
	})
}
