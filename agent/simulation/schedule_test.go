package simulation

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"holdfast/recovery"
)

// deed is what an event does. Those with a duration are undone after it.
type deed string

const (
	cut           deed = "cut"           // the node's way to etcd, both directions
	cutRequests   deed = "cutRequests"   // only what goes to etcd
	cutReplies    deed = "cutReplies"    // only what comes from etcd
	slowNetwork   deed = "slowNetwork"   // Arg ms more in each direction
	slowReplies   deed = "slowReplies"   // Arg ms more, only from etcd
	freezeStore   deed = "freezeStore"   // all ways cut; then an election refreshes the leases if Arg is 1
	storeErrors   deed = "storeErrors"   // Arg: which error
	flakyStore    deed = "flakyStore"    // every other request, at random, fails
	busyStore     deed = "busyStore"     // only leases are served in time
	newLeader     deed = "newLeader"     // watches end, leases are refreshed
	revokeLease   deed = "revokeLease"   // somebody else revokes the node's lease
	deleteKey     deed = "deleteKey"     // somebody else deletes its registration
	deleteState   deed = "deleteState"   // somebody else deletes its state
	crashSidecar  deed = "crashSidecar"  // Arg: how many of its last state files back
	stopSidecar   deed = "stopSidecar"   // in order
	leave         deed = "leave"         // 'holdfast leave', and the broker is restarted; not if Arg is 1
	freezeSidecar deed = "freezeSidecar" //
	crashBroker   deed = "crashBroker"
	freezeBroker  deed = "freezeBroker"
	lameDuck      deed = "lameDuck"   // the broker says that it ends, and takes that long; started again after Arg ms
	hang          deed = "hang"       // all brokers at once
	slowBroker    deed = "slowBroker" // Arg ms for each call
	refuseQuiesce deed = "refuseQuiesce"
	drain         deed = "drain"
	activate      deed = "activate"
	drainKey      deed = "drainKey" // a person writes the state itself
	move          deed = "move"     // topic Arg, to the node
	restartFleet  deed = "restartFleet"
	powerCut      deed = "powerCut"  // of all hosts, which come back one after the other; of etcd too if Arg is 1
	crashNode     deed = "crashNode" // sidecar and broker
	roll          deed = "roll"      // a rolling restart, from the node on; it leaves in the way Arg
	pause         deed = "pause"     // recovery, at the control handler
	resume        deed = "resume"
	join          deed = "join"         // sidecar and broker start, if they do not run
	createTopic   deed = "createTopic"  // record of topic Arg
	deleteTopic   deed = "deleteTopic"  // record and places of topic Arg
	deleteRecord  deed = "deleteRecord" // the record alone: it is still assigned
	// What machines do, and hands other than ours (misdeeds_test.go).
	lyingLeader deed = "lyingLeader" // member Arg confirms renewals, and the others expire the leases
	noQuorum    deed = "noQuorum"    // member Arg
	restore     deed = "restore"     // etcd goes back to what it was when this began; Arg 1: while all sidecars are away
	hands       deed = "hands"       // somebody makes served what is quiesced
	slowStop    deed = "slowStop"    // the broker takes Arg ms to end
	refuseStop  deed = "refuseStop"  // it cannot be stopped
	suspend     deed = "suspend"     // the host
	pauseVM     deed = "pauseVM"     // the machine; timers of the sidecar stand for Arg ms more
	stepWall    deed = "stepWall"    // somebody sets the wall clock, by Arg s
	killBoth    deed = "killBoth"    // sidecar and guard
	freezeBoth  deed = "freezeBoth"
	killGuard   deed = "killGuard"
)

// deeds is each deed with its weight.
var deeds = []struct {
	do     deed
	weight int
}{
	{cut, 10}, {cutRequests, 4}, {cutReplies, 6}, {slowNetwork, 4}, {slowReplies, 4}, {freezeStore, 3}, {storeErrors, 4}, {flakyStore, 3}, {busyStore, 2},
	{newLeader, 2}, {revokeLease, 3}, {deleteKey, 3}, {deleteState, 2}, {crashSidecar, 6}, {stopSidecar, 3}, {leave, 4},
	{freezeSidecar, 4}, {crashBroker, 5}, {freezeBroker, 3}, {slowBroker, 3}, {refuseQuiesce, 2}, {drain, 3}, {drainKey, 3},
	{activate, 5}, {move, 4}, {restartFleet, 2}, {powerCut, 3}, {crashNode, 4}, {pause, 4}, {resume, 1}, {join, 1},
	{lyingLeader, 4}, {noQuorum, 3}, {restore, 0}, {hands, 3}, {slowStop, 3}, {refuseStop, 2},
	{suspend, 3}, {pauseVM, 3}, {stepWall, 1}, {killBoth, 2}, {freezeBoth, 2}, {killGuard, 1},
}

// placing is what is drawn as well while the sidecars place the topics.
var placing = []deed{createTopic, createTopic, createTopic, deleteTopic, deleteTopic, deleteRecord, join, drain, activate, stopSidecar, crashNode, pause}

// spareTopics are those that are not there at the beginning.
const spareTopics = 4

type event struct {
	At   time.Duration
	Do   deed
	Node int
	For  time.Duration
	Arg  int
}

func (e event) String() string {
	s := fmt.Sprintf("%8.3fs  %-13s n%d", e.At.Seconds(), e.Do, e.Node)
	if e.For > 0 {
		s += fmt.Sprintf("  for %v", e.For)
	}
	if e.Arg != 0 {
		s += fmt.Sprintf("  (%d)", e.Arg)
	}
	return s
}

// schedule is all that is done to one cluster. Seed decides what a schedule leaves open.
type schedule struct {
	Seed     uint64
	Settings settings
	Events   []event
}

// draw makes the schedule of a seed. Durations are about the TTL: what is a little
// shorter and a little longer is where the mistakes are.
func draw(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 1))
	s := schedule{Seed: seed, Settings: drawSettings(r)}
	s.Settings.Boot, s.Settings.Lag = drawBoot(seed, s.Settings.TTL), drawLag(seed)
	ttl := s.Settings.TTL
	span := min(6*ttl, 60*time.Second) + 5*time.Second
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	extra := 0
	if s.Settings.Failover != "" {
		extra = 1 + r.IntN(5)
	}
	for i := range 2 + r.IntN(10) + extra {
		e := event{At: ms(time.Duration(r.Int64N(int64(span)))), Node: r.IntN(s.Settings.Nodes)}
		at := r.IntN(total)
		for _, d := range deeds {
			if at -= d.weight; at < 0 {
				e.Do = d.do
				break
			}
		}
		switch {
		case i < extra:
			e.Do = pick(r, placing...)
		case e.Do == move && extra > 0:
			e.Do = createTopic
		}
		around := ms(time.Duration(pick(r, 0.2, 0.5, 0.66, 0.9, 1, 1.1, 1.5, 2.5) * (0.9 + 0.2*r.Float64()) * float64(ttl)))
		switch e.Do {
		case cut, cutRequests, cutReplies, freezeSidecar, freezeBroker, crashSidecar, stopSidecar, crashBroker, crashNode, restartFleet, powerCut, freezeStore, flakyStore, busyStore:
			e.For = around
		case lyingLeader, noQuorum:
			e.For, e.Arg = around, r.IntN(members)
		case restore, hands, refuseStop, suspend, killBoth, freezeBoth:
			e.For = around
		case slowStop:
			e.For, e.Arg = around, pick(r, 100, 1000, 4000)
		case pauseVM:
			e.For, e.Arg = around, r.IntN(1000)
		case leave:
			e.For, e.Arg = around, pick(r, 0, 0, 1)
		case stepWall:
			e.Arg = pick(r, -3600, -5, 5, 3600)
		case pause:
			e.For = max(around, recovery.MinPause)
		case slowNetwork, slowReplies:
			e.For, e.Arg = around, pick(r, 50, 200, 450, 900)
		case slowBroker:
			e.For, e.Arg = around, pick(r, 20, 200, 1500)
		case refuseQuiesce:
			e.For = around
		case storeErrors:
			e.For, e.Arg = around, r.IntN(len(storeFaults))
		case move:
			e.Arg = r.IntN(s.Settings.Topics)
		case createTopic, deleteTopic, deleteRecord:
			e.Arg = r.IntN(s.Settings.Topics + spareTopics)
		}
		switch e.Do {
		case freezeStore, powerCut:
			e.Arg = r.IntN(2)
		case crashSidecar, crashNode, restartFleet:
			e.Arg = pick(r, 0, 0, 1, 2)
		}
		s.Events = append(s.Events, e)
		if (e.Do == slowReplies || e.Do == slowNetwork) && r.IntN(2) == 0 { // and right out of that, silence
			s.Events = append(s.Events, event{At: e.At + ms(time.Duration(r.Int64N(int64(e.For)))), Do: cut, Node: e.Node, For: ms(ttl * 3 / 2)})
		}
	}
	if r.IntN(5) == 0 { // the same for everybody at once: no one is singled out
		e := s.Events[0]
		if e.For > 0 {
			for n := range s.Settings.Nodes {
				e.Node = n
				s.Events = append(s.Events, e)
			}
		}
	}
	s.Events = append(s.Events, drawRoll(s, span)...)
	s.Events = append(s.Events, drawRestore(s, span)...)
	s.Events = append(s.Events, drawHang(s)...)
	slices.SortStableFunc(s.Events, func(a, b event) int { return cmp.Compare(a.At, b.At) })
	return s
}

// drawRoll is a rolling restart in one of ten schedules, in half of them when all else is
// over. It has a source of its own: the rest of a seed stays what it was.
func drawRoll(s schedule, span time.Duration) []event {
	r := rand.New(rand.NewPCG(s.Seed, 4))
	if r.IntN(10) > 0 {
		return nil
	}
	e := event{At: time.Duration(r.Int64N(int64(span))), Do: roll, Node: r.IntN(s.Settings.Nodes), Arg: r.IntN(len(departures)),
		For: time.Duration(pick(r, 0.2, 0.9, 1.1, 2) * float64(s.Settings.TTL))}
	if r.IntN(2) == 0 {
		e.Arg += careful
		for _, other := range s.Events {
			e.At = max(e.At, other.At+other.For+s.Settings.granted()+2*soon)
		}
	}
	e.At, e.For = e.At.Round(time.Millisecond), e.For.Round(time.Millisecond)
	return []event{e}
}

// drawRestore is a backup of etcd that is restored while all sidecars are away, in one of forty
// schedules, unless state files are lost in it, too.
func drawRestore(s schedule, span time.Duration) []event {
	r := rand.New(rand.NewPCG(s.Seed, 5))
	lost := slices.ContainsFunc(s.Events, func(e event) bool {
		return slices.Contains([]deed{crashSidecar, crashNode, restartFleet}, e.Do) && e.Arg > 0
	})
	if r.IntN(40) > 0 || lost {
		return nil
	}
	return []event{{At: time.Duration(r.Int64N(int64(span))).Round(time.Millisecond), Do: restore, Arg: 1,
		For: time.Duration(pick(r, 0.5, 1.1, 2.5) * float64(s.Settings.TTL)).Round(time.Millisecond)}}
}

// String is the schedule in lines.
func (s schedule) String() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "seed %d: %s\n", s.Seed, s.Settings)
	for _, e := range s.Events {
		fmt.Fprintf(b, "  %s\n", e)
	}
	return b.String()
}

// code is the schedule as a row for named_test.go.
func (s schedule) code(name string) string {
	b := &strings.Builder{}
	settings := strings.TrimPrefix(fmt.Sprintf("%#v", s.Settings), "simulation.")
	fmt.Fprintf(b, "{%q, schedule{Seed: %d, Settings: %s, Events: []event{\n", name, s.Seed, settings)
	for _, e := range s.Events {
		fmt.Fprintf(b, "\t{At: %d * time.Millisecond, Do: %s, Node: %d, For: %d * time.Millisecond, Arg: %d},\n",
			e.At.Milliseconds(), e.Do, e.Node, e.For.Milliseconds(), e.Arg)
	}
	b.WriteString("}}},\n")
	return b.String()
}
