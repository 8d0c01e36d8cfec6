package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

func TestDanubeOfSeveralRegistrationsWithItsAddressesTheBrokersOwnIsAdoptedUnchanged(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeKind)
	n := s.prepare("n1", nodeOptions{TTL: 15 * time.Second, Topics: []string{}})
	for range 3 { // lives without a sidecar, whose registrations linger
		s.must(n.broker.Start(s.ctx))
		s.must(n.broker.Kill())
	}
	lingering := n.names()
	if len(lingering) != 3 {
		t.Fatalf("registered as %v, want three lives", lingering)
	}
	from := s.revision()
	n.start()
	adopted := n.awaitRegistered(from)
	n.awaitReady()
	own := s.puts(adopted.Key, from)
	if id := n.number(); adopted.Key != s.keys.Registration(id) {
		t.Errorf("%s was adopted, and the broker is %s", adopted.Key, id)
	}
	if len(own) != 2 || own[1].Value != own[0].Value || own[1].Lease == own[0].Lease || own[1].CreateRevision != own[0].Revision {
		t.Errorf("the registration was put %v, want the broker's bytes twice, under two leases", own)
	}
	for _, id := range lingering {
		if again := s.puts(s.keys.Registration(id), from); len(again) > 0 {
			t.Errorf("the registration of a process that has gone was kept: %v", again)
		}
	}
	if st := n.await("adopted", func(st harness.Status) bool { return st.Registration.Adopted }); st.BrokerID != n.id {
		t.Errorf("the broker's stable name is %q", st.BrokerID)
	}
}

func TestDanubeRestartWithinTheTTLHandsAllTopicsToTheNextProcess(t *testing.T) {
	long(t)
	for name, row := range map[string]struct {
		count int
		both  bool // the sidecar is restarted too
	}{"3 topics": {3, false}, "150 topics": {150, false}, "150 topics, and the sidecar with it": {150, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := row.count
			var topics []string
			for i := range count {
				topics = append(topics, fmt.Sprintf("/default/t%03d", i))
			}
			s := newStageOf(t, danubeKind)
			s.peer("n2")
			n := s.add("n1", nodeOptions{TTL: 15 * time.Second, Topics: topics})
			n.produces(2)
			before, former, from := n.registration(), n.name(), s.revision()
			if row.both {
				n.kill()
				n.awaitNotReady()
				n.start()
			} else {
				s.must(n.broker.Kill())
				n.awaitNotReady()
				s.must(n.broker.Launch())
			}
			n.awaitReady()

			now := n.name()
			if now == former {
				t.Fatal("the id is that of the process before")
			}
			if reg := n.registration(); reg.Lease == 0 || reg.CreateRevision <= before.CreateRevision {
				t.Errorf("the next process is registered as %+v, want anew", reg)
			}
			if reg, err := s.keys.ReadRegistration(s.ctx, s.etcd.Client(), former); err != nil || reg.ModRevision != 0 {
				t.Errorf("the process before is registered: %+v, %v", reg, err)
			}
			transactions := map[int64]bool{}
			for _, topic := range topics {
				given := s.puts(s.keys.Assignment(now, topic), from)
				if len(given) != 1 || !slices.ContainsFunc(s.history.At(given[0].Revision), harness.DeletedKey(s.keys.Assignment(former, topic))) {
					t.Errorf("%s was given to the next process by %v, want once and with the deletion of the other", topic, given)
					continue
				}
				transactions[given[0].Revision] = true
			}
			t.Logf("%d topics in %d transactions", count, len(transactions))
			if st, err := n.danubed().Status(s.ctx); err != nil || st.Loads != count {
				t.Errorf("%d loads, %v; want %d", st.Loads, err, count)
			}
			n.isInMode("active", "fast_restart")
			n.keeps(topics, 2)
			if text := n.says("events"); !strings.Contains(text, former) {
				t.Errorf("the journal does not name the process before:\n%s", text)
			}
		})
	}
}

// A broker does not look at what was assigned to it before its watch began.
func TestDanubeAnAssignmentThatTheBrokerDidNotSeeIsPutAgainOnceAndNoOther(t *testing.T) {
	long(t)
	s := newStageOf(t, danubeWith(func(o *harness.DanubeOptions) { o.Args = []string{"--register-delay", "2s"} }))
	n := s.prepare("n1", nodeOptions{Topics: []string{}, Flags: []string{"--audit-interval", "1s"}})
	n.start()
	id, unseen := n.number(), []string{"/default/u1", "/default/u2", "/default/u3"}
	s.must(harness.CreateDanubeTopics(s.ctx, s.etcd.Client(), unseen...))
	s.must(s.keys.Assign(s.ctx, s.etcd.Client(), id, unseen...))
	n.awaitReady()
	n.topics = unseen
	n.publishes() // ready is a promise
	n.topics = []string{"/default/seen"}
	n.assign(n.topics...)
	n.await("all topics", func(st harness.Status) bool { return st.Topics.Served == 4 })
	s.waitOut(4 * time.Second) // some audits
	for _, topic := range append(unseen, "/default/seen") {
		want := 2
		if topic == "/default/seen" {
			want = 1
		}
		if puts := s.puts(s.keys.Assignment(id, topic), 0); len(puts) != want || puts[len(puts)-1].Value != "null" {
			t.Errorf("%s was assigned %v, want %d times null", topic, puts, want)
		}
	}
	if st, err := n.danubed().Status(s.ctx); err != nil || st.Loads != 4 {
		t.Errorf("%d loads, %v; want 4", st.Loads, err)
	}
}
