package recovery

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// served is a broker that nothing holds back, and then a change.
func served(changes ...func(*Circumstances)) Circumstances {
	c := Circumstances{Detaches: true, Known: true, Held: true, Attachment: Attached,
		Mode: *byHoldfast(Active, ReasonBoot), Up: true}
	for _, change := range changes {
		change(&c)
	}
	return c
}

// anyCircumstances are drawn: each fact is as it is when nothing is wrong in three of four.
func anyCircumstances(r *rand.Rand) Circumstances {
	c := served()
	wrong := func() bool { return r.IntN(4) == 0 }
	for _, fact := range []*bool{&c.Unleased, &c.Detaches, &c.Known, &c.Held, &c.Expired, &c.Doubted,
		&c.AwaitGuard, &c.Failing, &c.NoGuard, &c.Suspect, &c.Gone, &c.Another} {
		*fact = *fact != wrong()
	}
	for _, said := range []*string{&c.Restart, &c.Conflict, &c.Leaving, &c.Stopped, &c.Stuck, &c.Refused, &c.Undrained, &c.Paused, &c.Ill, &c.Unable, &c.Untold, &c.Unsettled} {
		if wrong() {
			*said = "said"
		}
	}
	c.Attachment = Attachments[r.IntN(len(Attachments))]
	if wrong() {
		c.Mode = []ModeRecord{{}, *byPerson(Drained), *byPerson(Draining), *byHoldfast(Drained, ReasonStaleRestart), {Mode: Unreadable}, *byPerson(Active)}[r.IntN(6)]
	}
	switch r.IntN(4) {
	case 0:
		c.Up, c.Down = false, true
	case 1:
		c.Up = false
	}
	return c
}

// What is wrong, alone: the row that it is, which condition of readiness that breaks, the words, and
// what it blocks. The order is that of precedence.
var wrongs = []struct {
	row, cause, text string
	blocks           Blocks
	change           func(*Circumstances)
}{
	{"restart", "attached", "it was not stopped", Ready, func(c *Circumstances) { c.Restart = "it was not stopped" }},
	{"conflict", "attached", "n1 is another's", Ready | Load | Topics | Tell | Places | Attach | Assert, func(c *Circumstances) { c.Conflict = "n1 is another's" }},
	{"leaving", "attached", "it leaves", Ready | Load | Topics | Tell | Places, func(c *Circumstances) { c.Leaving = "it leaves" }},
	{"stopped", "broker", "n1 was stopped", Ready, func(c *Circumstances) { c.Up, c.Down, c.Stopped = false, true, "n1 was stopped" }},
	{"gone", "broker", "its process has ended", Ready | Load, func(c *Circumstances) { c.Gone = true }},
	{"ill", "broker", "unknown, held (it is alone): refused", Ready, func(c *Circumstances) { c.Up, c.Ill, c.Error = false, "it is alone", "refused" }},
	{"down", "broker", "down: refused", Ready | Load | Topics | Steer, func(c *Circumstances) { c.Up, c.Down, c.Error = false, true, "refused" }},
	{"unknown", "broker", "unknown", Ready, func(c *Circumstances) { c.Up = false }},
	{"another", "broker", "another broker process answers: the decision about it is to come", Ready | Load | Topics | Steer, func(c *Circumstances) { c.Another = true }},
	{"away", "lease", "what becomes of this broker process is not decided yet", Ready, func(c *Circumstances) { c.Unleased, c.Expired = true, true }},
	{"refused", "lease", "no registration is held", Ready, func(c *Circumstances) { c.Known, c.Held, c.Refused = false, false, "no leader" }},
	{"unregistered", "lease", "no registration is held", Ready | Start, func(c *Circumstances) { c.Known, c.Held = false, false }},
	{"unregistered", "lease", "its data directory is not read yet", Ready | Start, func(c *Circumstances) { c.Known, c.Held, c.Rests = false, false, "its data directory is not read yet" }},
	{"late", "lease", "the fence point has passed without a confirmed renewal", Ready | Start, func(c *Circumstances) { c.Held = false }},
	{"doubt", "lease", "this host did not run for a while, or its clock was set: no renewal was confirmed since",
		Ready | Load | Topics | Tell | Places | Attach | Assert | Start, func(c *Circumstances) { c.Doubted = true }},
	{"cut", "attached", "detached from the cluster", Ready, func(c *Circumstances) { c.Attachment, c.Failing = Detached, true }},
	{"detached", "attached", "detached from the cluster", Ready | Load | Topics | Tell | Places | Assert, func(c *Circumstances) { c.Attachment = Detached }},
	{"undecided", "mode", "mode not known yet", Ready | Load | Topics | Steer | Places, func(c *Circumstances) { c.Mode = ModeRecord{} }},
	{"undrained", "mode", "drained (disk swap)", Ready, func(c *Circumstances) { c.Mode, c.Undrained = *byPerson(Drained), "is not" }},
	{"suspect", "mode", "drained (stale_restart)", Ready | Load | Steer | Takes, func(c *Circumstances) { c.Suspect, c.Mode = true, *byHoldfast(Drained, ReasonStaleRestart) }},
	{"drained", "mode", "drained (disk swap)", Ready | Load, func(c *Circumstances) { c.Mode = *byPerson(Drained) }},
	{"draining", "mode", "draining (disk swap)", Ready | Load, func(c *Circumstances) { c.Mode = *byPerson(Draining) }},
	{"guard", "guard", "the guard of the broker's process does not stand by yet", Ready | Load | Topics | Tell | Attach, func(c *Circumstances) { c.AwaitGuard = true }},
	{"paused", "", "paused by ops", Load | Takes | Assert, func(c *Circumstances) { c.Paused = "ops" }},
	{"unable", "work", "no quorum", Ready, func(c *Circumstances) { c.Unable = "no quorum" }},
	{"untold", "steer", "is being told", Ready, func(c *Circumstances) { c.Untold = "is being told" }},
	{"unsettled", "topics", "1 topic of 2 not loaded yet", Ready, func(c *Circumstances) { c.Unsettled = "1 topic of 2 not loaded yet" }},
	{"stuck", "agent", "has not run for 12s", Ready, func(c *Circumstances) { c.Stuck = "has not run for 12s" }},
	{"failing", "", "renewals fail", 0, func(c *Circumstances) { c.Failing = true }},
	{"elsewhere", "", "other brokers own topics of this one", 0, func(c *Circumstances) { c.Missing, c.Elsewhere = 1, 1 }},
	{"stale", "", "it sees nothing", 0, func(c *Circumstances) { c.Stale = "it sees nothing" }},
	{"missing", "", "topics do not load", 0, func(c *Circumstances) { c.Missing = 1 }},
	{"tripped", "", "many went", 0, func(c *Circumstances) { c.Tripped = "many went" }},
	{"unstoppable", "", "another's process", 0, func(c *Circumstances) { c.Foreign = "another's process" }},
	{"risk", "", "--guard off", 0, func(c *Circumstances) { c.Risk = "--guard off" }},
	{"unguarded", "", "no guard stands by", 0, func(c *Circumstances) { c.NoGuard = true }},
	{"vacant", "", "no topic is placed here", 0, func(c *Circumstances) { c.Vacant = true }},
	{"denied", "", "to read", 0, func(c *Circumstances) { c.Denied = "to read" }},
	{"misplaced", "", "an assignment is not where it was meant to be, or the state is not saved", 0, func(c *Circumstances) { c.Misplaced = true }},
}

func TestNothingHoldsBackABrokerThatServes(t *testing.T) {
	for name, c := range map[string]Circumstances{
		"it serves":                            served(),
		"--detach=false, past the fence point": served(func(c *Circumstances) { c.Detaches, c.Held = false, false }),
		"without etcd, and not away":           served(func(c *Circumstances) { c.Unleased = true }),
	} {
		if got := Holds(c); len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWhatHoldsABrokerBack(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range wrongs {
		t.Run(w.row, func(t *testing.T) {
			got := Holds(served(w.change))
			first := slices.IndexFunc(got, func(h Hold) bool { return h.Name == w.row })
			if first < 0 {
				t.Fatalf("%+v", got)
			}
			seen[w.row] = true
			blocks := Blocks(0)
			for _, h := range got {
				if h.Name == w.row {
					blocks |= h.Blocks
				}
			}
			if h := got[first]; h.Cause != w.cause || h.Text != w.text || blocks != w.blocks {
				t.Errorf("%+v blocks %b, want %b", h, blocks, w.blocks)
			}
			for bit := Ready; bit <= Start; bit <<= 1 {
				all := Blocks(0)
				for _, h := range got {
					all |= h.Blocks
				}
				if served(w.change).Holds(bit) != (all&bit != 0) {
					t.Errorf("%b: one bit and the list do not agree", bit)
				}
			}
		})
	}
	for _, row := range holdTable {
		if !seen[row.Name] {
			t.Errorf("%s: no test", row.Name)
		}
	}
}

// Of two that break one condition of readiness the first is told, and of all that have a sentence the first
// says it.
func TestWhichHoldIsTold(t *testing.T) {
	told := func(c Circumstances, cause string) string {
		all := Holds(c)
		return all[slices.IndexFunc(all, func(h Hold) bool { return h.Cause == cause })].Name
	}
	pairs := 0
	for i, first := range wrongs {
		for _, second := range wrongs[i+1:] {
			c := served(second.change, first.change)
			both := Holds(c)
			has := func(name string) bool { return slices.ContainsFunc(both, func(h Hold) bool { return h.Name == name }) }
			if !has(first.row) || !has(second.row) {
				continue
			}
			if first.cause != "" && first.cause == second.cause {
				pairs++
				if got := told(c, first.cause); got != first.row {
					t.Errorf("%s and %s: %s is told", first.row, second.row, got)
				}
			}
			if lineOf(holdsTxt, first.row) == "" || lineOf(holdsTxt, second.row) == "" || (first.blocks|second.blocks)&Ready != 0 && first.blocks&second.blocks&Ready == 0 {
				continue
			}
			pairs++
			if _, got := Say(both); got.Name != first.row {
				t.Errorf("%s and %s: %s says it", first.row, second.row, got.Name)
			}
		}
	}
	if pairs < 150 {
		t.Errorf("%d pairs", pairs)
	}
}

// A remark on a broker that serves is none on one that is kept from clients.
func TestWhatIsSaidOfABroker(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Circumstances
		want string
	}{
		{"it serves", served(), "{name} is attached, active and serves"},
		{"something that has no sentence", served(func(c *Circumstances) { c.Misplaced = true }), "{name} is attached, active and serves"},
		{"renewals fail", served(func(c *Circumstances) { c.Failing, c.Risk = true, "?" }), "{name} serves {served}, but renewals fail"},
		{"renewals fail, and its topics load", served(func(c *Circumstances) { c.Failing, c.Unsettled = true, "?" }), "{name} is not ready: {cause}: {text}."},
		{"its topics load, and it is not heard of", served(func(c *Circumstances) { c.Up, c.Unsettled = false, "?" }), "{name} is not ready: {cause}: {text}."},
		{"not heard of, and drained", served(func(c *Circumstances) { c.Up, c.Mode = false, *byPerson(Drained) }), "{name} is drained ({reason})"},
	} {
		if got, _ := Say(Holds(c.c)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	for line := range strings.Lines(holdsTxt) {
		name, _, _ := strings.Cut(line, ": ")
		if !slices.ContainsFunc(holdTable, func(h Hold) bool { return h.Name == strings.TrimSuffix(name, " text") }) && !slices.Contains([]string{"serves", "unready"}, name) {
			t.Errorf("%s: no row is called so", name)
		}
	}
}

func TestHowMuchItMatters(t *testing.T) {
	type c = *Circumstances
	detached := func(c c) { c.Attachment = Detached }
	down := func(c c) { c.Up, c.Down = false, true }
	silent := func(c c) { c.Up = false }
	asked := func(c c) { c.Mode = *byPerson(Drained) }
	lost := func(c c) { c.Attachment, c.Failing, c.Refused = Detached, true, "timeout" }
	began := func(c c) { c.Attachment, c.Mode, c.Known, c.Held = Detached, ModeRecord{}, false, false }
	was := func(c c) { c.WasRegistered, c.EverReady = true, true }
	loads := func(c c) { c.Unsettled = "1 topic" }
	shadow := func(c c) { c.Shadow = true }
	for _, row := range []struct {
		name string
		c    Circumstances
		want Severity
	}{
		{"it serves", served(), OK},
		{"renewals fail", served(func(c c) { c.Failing = true }), Warning},
		{"etcd denies a right", served(func(c c) { c.Denied = "to read" }), Warning},
		{"a topic does not load", served(func(c c) { c.Missing = 1 }), Warning},
		{"another broker has the topic", served(func(c c) { c.Missing, c.Elsewhere = 1, 1 }), OK},
		{"the guard is absent", served(func(c c) { c.NoGuard = true }), Warning},
		{"recovery is paused", served(func(c c) { c.Paused = "ops" }), Info},
		{"a pause hides nothing", served(func(c c) { c.Paused, c.Failing = "ops", true }), Warning},

		{"the sidecar just started", served(began, silent), Info},
		{"the first start, and the broker is not up yet", served(began, down), Info},
		{"the first start, without etcd", served(began, lost), Warning},
		{"started again, before the decision", served(began, was), Info},
		{"started again, without etcd", served(began, lost, was), Critical},
		{"it loads for the first time", served(loads), Info},
		{"it loads again", served(loads, was), Warning},

		{"the fence point has passed", served(lost, was), Critical},
		{"the broker is down", served(down, was), Critical},
		{"the broker is not heard of", served(silent, was), Warning},
		{"the fence stopped the broker", served(detached, down, asked, func(c c) { c.Stopped = "by the fence" }), Critical},
		{"its double is registered", served(detached, func(c c) { c.Conflict = "?" }), Critical},
		{"it leaves", served(detached, down, was, func(c c) { c.Leaving = "it leaves" }), Info},

		{"an operator drained it", served(asked), Info},
		{"an operator drained it and stopped the broker", served(asked, detached, down), Info},
		{"an operator drained it and etcd went", served(asked, lost), Warning},
		{"it does not take the drain", served(asked, func(c c) { c.Undrained = "is not" }), Warning},
		{"it joins", served(func(c c) { c.Mode = *byHoldfast(Drained, ReasonJoin) }), Info},
		{"it waits for an operator", served(was, func(c c) { c.Mode = *byHoldfast(Drained, ReasonStaleRestart) }), Warning},

		{"a shadow serves", served(shadow), OK},
		{"a shadow would fence", served(lost, was, shadow), Warning},
	} {
		if got := Judge(row.c, Holds(row.c)); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// Whatever else is so: a broker that may not be touched is not shown to clients either, nor loaded
// (safety rules 2 and 9).
func TestWhoMayNotBeTouchedIsNotReady(t *testing.T) {
	for seed := range uint64(20_000) {
		c := anyCircumstances(rand.New(rand.NewPCG(seed, 1)))
		if (c.Holds(Topics) || c.Holds(Tell)) && !(c.Holds(Ready) && c.Holds(Load)) {
			t.Fatalf("%+v", c)
		}
		if c.Attachment == Detached && !(c.Holds(Topics) && c.Holds(Tell) && c.Holds(Places) && c.Holds(Assert)) {
			t.Fatalf("detached: %+v", c)
		}
		for _, h := range Holds(c) {
			if h.Blocks&Ready != 0 && (!slices.Contains(Causes, h.Cause) || h.Text == "") {
				t.Fatalf("%+v: nothing is said", h)
			}
		}
	}
}
