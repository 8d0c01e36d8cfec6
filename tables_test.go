package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/moving"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

var night = time.Date(2026, 11, 20, 3, 12, 5, 0, time.UTC)

func attachedStatus() control.Status {
	return control.Status{
		BrokerID: "n1", Driver: "nats", Incarnation: "b2f1", Epoch: 412,
		Attachment: "attached", Mode: "active", Reason: "fast_restart",
		Boot:         control.BootStatus{Kind: "restart", Reason: "fast_restart", Evidence: []string{"2 streams older than the broker process", "state file"}},
		Lease:        control.LeaseStatus{ID: "694d9f0c5a2b1e07", TTLSeconds: 32, RemainingSeconds: 29.14, FenceInSeconds: 18.47},
		Registration: control.RegistrationStatus{Present: true, CreateRevision: 412, State: "held"},
		Broker:       control.BrokerStatus{Up: "up", Version: "2.10.4"},
		Guard:        control.GuardStatus{State: "stands_by", Pid: 4711},
		Topics:       control.TopicCounts{Assigned: 1000, Served: 1000, Listed: true},
		Ready:        control.ReadyStatus{OK: true},
		Summary:      "Attached and ready: 1000 topics served.",
		Version:      "v1.2.3", Since: night.Add(-26 * time.Hour), At: night,
	}
}

func TestStatusTableIsGolden(t *testing.T) {
	degraded := attachedStatus()
	degraded.Attachment = "degraded"
	degraded.Lease = control.LeaseStatus{ID: "694d9f0c5a2b1e07", TTLSeconds: 32, RemainingSeconds: 12.3, FenceInSeconds: 1.6,
		FailureStreak: 14, FailingSeconds: 19.7, LastError: "etcd unreachable: connection refused"}
	degraded.Topics = control.TopicCounts{Assigned: 1000, Served: 990, Missing: 10, Loading: 4, Orphan: 2, Quarantined: 1, Unreadable: 3}
	degraded.Summary = "Degraded: etcd cannot be reached; detaches in 1.6s if it stays away."

	detached := attachedStatus()
	detached.Attachment, detached.Mode, detached.Reason = "detached", "drained", "registration_expired"
	detached.Lease = control.LeaseStatus{}
	detached.Registration = control.RegistrationStatus{}
	detached.Broker = control.BrokerStatus{Up: "down", LastError: "connection refused"}
	detached.Ready = control.ReadyStatus{Causes: []string{"detached", "mode is drained"}}
	detached.Decided = &control.DecisionStatus{Row: "registration_expired", Why: "declared dead by a living cluster: era is still 3: other brokers stayed registered all the while",
		Otherwise: "Renewed within the TTL, it would have kept its mode."}
	detached.Summary = "Detached and drained: run 'holdfast activate' when the broker may serve again."

	passed := attachedStatus()
	passed.Attachment, passed.Ready = "detached", control.ReadyStatus{Causes: []string{"detached"}}
	passed.Lease.RemainingSeconds, passed.Lease.FenceInSeconds = 4, -6.7
	passed.Summary = "Past the fence point."

	paused := attachedStatus()
	paused.Pause = &control.PauseStatus{Owner: "ops", Reason: "disk swap", Until: night.Add(30 * time.Minute), RemainingSeconds: 1800}
	paused.Summary = "Attached and ready: 1000 topics served. Recovery is paused."

	cut := attachedStatus()
	cut.Attachment, cut.Ready = "detached", control.ReadyStatus{Causes: []string{"lease: the fence point has passed without a confirmed renewal"}}
	cut.Lease.RemainingSeconds, cut.Lease.FenceInSeconds = -4, -14.7
	cut.Lease.FailureStreak, cut.Lease.FailingSeconds, cut.Lease.LastError = 30, 36, "dial tcp 10.0.0.7:2379: connect: connection refused"
	cut.Registration.State = "unknown"
	cut.Summary = "n1 is detached and fenced: no renewal was confirmed for 36s (unreachable); its registration may have run out: if it has and other brokers stayed registered, it comes back drained and waits for 'holdfast activate'; check etcd (http://10.0.0.1:2379, http://10.0.0.2:2379) and the way to it."

	denied := attachedStatus()
	denied.Attachment, denied.Mode, denied.Reason, denied.Epoch, denied.Boot = "detached", "", "", 0, control.BootStatus{Kind: "unknown"}
	denied.Lease = control.LeaseStatus{FailureStreak: 6, LastError: "read cluster state of broker n1: etcdserver: permission denied to read /cluster/register/: etcdctl role grant-permission ROLE --prefix=true read /cluster/register/"}
	denied.Registration = control.RegistrationStatus{State: "unknown"}
	denied.Summary = `n1 is not known to be registered (auth): --etcd-user "n1": etcd refuses it: permission denied to read /cluster/register/: etcdctl role grant-permission ROLE --prefix=true read /cluster/register/: see docs/security.md.`
	denied.Ready = control.ReadyStatus{Causes: []string{"lease: no registration is held"}}

	drained := attachedStatus()
	drained.Mode, drained.Reason, drained.Summary = "drained", "swap", "n1 is drained (swap) and keeps clients away; when the cause is understood: holdfast activate."
	drained.Topics = control.TopicCounts{Assigned: 3, Missing: 3, Misspelt: 1, Listed: true}
	drained.Ready = control.ReadyStatus{Causes: []string{"mode: drained (swap)"}}

	contested := attachedStatus()
	contested.Attachment, contested.Mode, contested.Reason, contested.Epoch = "detached", "", "", 0
	contested.Lease, contested.Boot = control.LeaseStatus{}, control.BootStatus{Kind: "unknown"}
	contested.Registration = control.RegistrationStatus{Present: true, State: "another"}
	contested.Summary = `Clients are kept away: broker id "n1" is registered by incarnation c0de, not by this sidecar: stop one of the two.`
	contested.Ready = control.ReadyStatus{Causes: []string{"lease: no registration is held"}}

	stopped := detached
	stopped.Summary = "n1 was stopped by its guard at 2026-11-20 03:10:46Z (no word from the sidecar for 7.1s): clients are kept away; start it."
	stopped.Broker.LastError = "dial tcp 127.0.0.1:4222: connect: connection refused"
	stopped.Ready = control.ReadyStatus{Causes: []string{"lease: no registration is held", "broker: down: " + stopped.Broker.LastError}}
	stopped.Guard, stopped.Boot.Past = control.GuardStatus{State: "idle"}, true
	stopped.Registration.State = "absent"

	shadow := attachedStatus()
	shadow.Shadow, shadow.Guard, shadow.Registration.State = true, control.GuardStatus{State: "off"}, "supposed"
	shadow.Summary = "shadow: n1 would be attached and active, and would serve 1000 topics; in fact nothing is done."

	start := control.Status{Driver: "nats", Attachment: "detached", Broker: control.BrokerStatus{Up: "unknown"},
		Boot: control.BootStatus{Kind: "unknown"}, Summary: "Starting: waiting for the broker.", Version: "devel", Since: night, At: night}

	for name, s := range map[string]control.Status{
		"attached": attachedStatus(), "degraded": degraded, "detached": detached, "past-fence": passed, "paused": paused, "starting": start,
		"cut": cut, "contested": contested, "denied": denied, "drained": drained, "stopped": stopped, "shadow": shadow,
	} {
		var b bytes.Buffer
		writeStatus(&output{to: &b}, s)
		if first, _, _ := strings.Cut(b.String(), "\n"); first != s.Summary {
			t.Errorf("%s: the first line is %q, not the summary", name, first)
		}
		golden(t, "status-"+name+".txt", b.String())
	}
}

func TestTopicsTableIsGolden(t *testing.T) {
	rows := []control.TopicStatus{
		{Topic: "/default/orders", State: "served"},
		{Topic: "/default/a-rather-long-name-of-a-topic", State: "missing", Error: "load: 503: insufficient storage"},
		{Topic: "/söder/blåbär", State: "loading"},
		{Topic: "/default/stray", State: "quarantined"},
	}
	var b bytes.Buffer
	writeTopics(&output{to: &b}, rows, rows)
	b.WriteString("---\n")
	writeTopics(&output{to: &b}, rows, nil)
	golden(t, "topics.txt", b.String())
}

func TestEventsAreOneLineEach(t *testing.T) {
	local := time.FixedZone("here", 2*3600)
	var b bytes.Buffer
	for _, e := range []control.Event{
		{ID: 12, At: night.In(local), Kind: "attachment", From: "attached", To: "degraded", Reason: "unreachable", Detail: "Renewals fail since 03:12:01."},
		{ID: 13, At: night, Kind: "boot", To: "restart"},
		{ID: 14, At: night, Kind: "boot", To: "restart", Reason: "disk swap", Detail: "kept: only an operator may lift it", Row: "kept", Otherwise: "Activated before, it would have been active."},
	} {
		writeEvent(&output{to: &b}, e)
	}
	want := "2026-11-20 03:12:05Z  #12 attachment attached → degraded (unreachable) Renewals fail since 03:12:01.\n" +
		"2026-11-20 03:12:05Z  #13 boot restart\n" +
		"2026-11-20 03:12:05Z  #14 boot restart (disk swap) kept: only an operator may lift it (decided by kept; otherwise: Activated before, it would have been active.)\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestExplanationIsGolden(t *testing.T) {
	x := control.Explanation{
		Event: control.Event{ID: 12, At: night, Kind: "attachment", From: "degraded", To: "detached", Reason: "fence_point", Epoch: 412, Detail: "No renewal was confirmed for 21.3s."},
		Why:   "etcd could not be reached from here, and 10.7s before the lease may run out the broker must have stopped serving, so that no other broker serves the same topics.",
		Avoid: "A longer --lease-ttl: with 64s this cut would have been survived.",
	}
	var b bytes.Buffer
	writeExplanation(&output{to: &b}, x)
	b.WriteString("---\n")
	x.Event = control.Event{ID: 13, At: night, Kind: "boot", To: "restart", Reason: "stale_restart", Row: "stale_restart", Detail: "declared dead by a living cluster"}
	x.Otherwise = "Back before its registration ended, it would have been active (fast_restart)."
	writeExplanation(&output{to: &b}, x)
	golden(t, "explain.txt", b.String())
}

func fleetOfThree() []cluster.FleetBroker {
	since := [2]time.Time{night.Add(-3 * time.Hour), night.Add(-time.Hour)}
	return []cluster.FleetBroker{
		{BrokerID: "n1", Topics: 1000, Registered: true, Epoch: 412, BrokerURL: "nats://n1:4222", Mode: "active", Reason: "boot", By: "holdfast", Since: &since[0]},
		{BrokerID: "n2-with-a-longer-name", Topics: 3, Registered: true, Epoch: 9, Mode: "drained", Reason: "stale_restart"},
		{BrokerID: "n3", StateMalformed: `{"mode":7}`, Since: &since[1]},
	}
}

func TestFleetTableIsGolden(t *testing.T) {
	var b bytes.Buffer
	writeFleet(&output{to: &b}, fleetOfThree(), night)
	b.WriteString("---\n")
	writeFleet(&output{to: &b}, nil, night)
	golden(t, "fleet.txt", b.String())
}

func TestAFleetNamesTheWayOutForABrokerThatDoesNotComeBack(t *testing.T) {
	left := night.Add(-6 * time.Second)
	for _, row := range []struct {
		broker cluster.FleetBroker
		want   string
	}{
		{cluster.FleetBroker{BrokerID: "n9", Topics: 1}, "n9 is NOT registered: nobody is known to serve its topics (1); if it will not come back: 'holdfast forget n9'.\n"},
		{cluster.FleetBroker{BrokerID: "n9", Topics: 1, Left: &left}, "n9 is NOT registered: it left on purpose 6s ago, and its topics (1) wait for it; if it will not come back: 'holdfast forget n9'.\n"},
	} {
		var b bytes.Buffer
		if writeFleet(&output{to: &b}, []cluster.FleetBroker{row.broker}, night); !strings.HasPrefix(b.String(), row.want) {
			t.Errorf("got\n%s\nwant\n%s", b.String(), row.want)
		}
	}
}

func TestAFleetNamesAMemberRecordThatCannotBeRead(t *testing.T) {
	var b bytes.Buffer
	writeFleet(&output{to: &b}, []cluster.FleetBroker{{BrokerID: "n9", MemberMalformed: "torn"}}, night)
	if want := "The member record of n9 cannot be read: \"torn\". Its sidecar writes it anew when it registers, or is started again.\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestAFleetNamesTopicsThatAreAssignedTwice(t *testing.T) {
	var b bytes.Buffer
	writeFleet(&output{to: &b}, []cluster.FleetBroker{{BrokerID: "n9", Registered: true, Topics: 1, Shared: []string{"/shop/mails"}}}, night)
	if want := "1 topic of n9: assigned to another broker, too, and served by both unless they take ownership locks: delete one of the two keys: /shop/mails\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestFleetJSONIsGolden(t *testing.T) {
	raw, err := json.MarshalIndent(fleetOfThree(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "fleet.json", string(raw)+"\n")
}

func TestAgeHasTheTwoLargestUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		4 * time.Second: "4s", 61 * time.Second: "1m1s", 3*time.Hour + 2*time.Minute: "3h2m", 50 * time.Hour: "2d2h", -time.Second: "0s",
	} {
		if got := age(night, night.Add(-d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	if got := age(night, time.Time{}); got != "-" {
		t.Errorf("never: %s", got)
	}
}

func TestFleetNamesMovesThatNobodyCarriesOn(t *testing.T) {
	var b bytes.Buffer
	journal := func(from, to, phase string) cluster.KV {
		return cluster.KV{Key: "/cluster/moves/a/b", Value: fmt.Appendf(nil, `{"format":1,"id":"m1","from":%q,"to":%q,"phase":%q,"planned":{},"sealed":{}}`, from, to, phase)}
	}
	writeFleetMoves(&output{to: &b}, []cluster.FleetBroker{{BrokerID: "n1", Registered: true}, {BrokerID: "n2"}}, map[string]cluster.KV{
		"/a/over": journal("n1", "n2", "done"), "/a/way": journal("n1", "n2", "sealed"), "/a/nobody": journal("n2", "n3", "copied"),
		"/a/garbled": {Key: "/cluster/moves/a/garbled", Value: []byte("{")}, "/a/newer": {Key: "/cluster/moves/a/newer", Value: []byte(`{"format":2}`)},
	})
	want := `move of /a/garbled: cannot be read: unexpected end of JSON input. It is left alone: if nobody moves the topic, delete /cluster/moves/a/garbled from etcd.
move of /a/newer: cannot be read: format 2: of a newer version of holdfast. It is left alone: if nobody moves the topic, delete /cluster/moves/a/newer from etcd.
Move m1 of /a/nobody (copied) waits: neither n2 nor n3 is registered.
1 move under way: 'holdfast moves' beside a sidecar says how far.
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

func TestTheLineOfAMoveSaysWhatItWaitsFor(t *testing.T) {
	s := moving.Shown{Move: moves.Move{Topic: "/n/t", Phase: moves.Pending, Error: "no room"}}
	if got := progressLine(s); got != "/n/t  pending: no room" {
		t.Error(got)
	}
	if s.Stalled = "n2's turn: 'holdfast status' at n2"; progressLine(s) != "/n/t  pending: "+s.Stalled {
		t.Error(progressLine(s))
	}
}
