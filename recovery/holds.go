package recovery

import (
	"cmp"
	_ "embed"
	"slices"
	"strings"
)

// Blocks says what a hold keeps from happening, one bit each.
type Blocks uint16

// What can be kept from happening.
const (
	Ready  Blocks = 1 << iota // clients are sent here
	Load                      // a topic that is missing is loaded
	Topics                    // anything is done to topics
	Tell                      // the broker is told anything at all: while it is not, the fence has it to itself
	Steer                     // it is told its mode, which must be about the process that answers
	Places                    // topics are placed in the broker's name
	Takes                     // topics are taken anew, or begun to be given
	Attach                    // a detached broker is attached
	Assert                    // the mode is written again
	Start                     // the broker is started, unless etcd answers

	noService = Ready | Load | Topics | Tell | Places
)

// Severity says how much it matters to whoever is woken by it.
type Severity int

// From the least to the most.
const (
	OK       Severity = iota // clients may come, and nothing is to do
	Info                     // as somebody wants it, or about to be ready
	Warning                  // clients may come, but not for long unless somebody looks; or it waits for an operator
	Critical                 // clients are kept away, and nobody asked for that
)

func (s Severity) String() string { return [...]string{"ok", "info", "warning", "critical"}[s] }

// Circumstances are what may hold a broker back at one moment, and what an operator should know of
// one that serves. A text that is empty says that there is nothing to say.
type Circumstances struct {
	Shadow, WasRegistered, EverReady bool   // nothing is done; the broker was registered, by anybody; startup is over
	Paused                           string // who has paused recovery
	Stuck                            string // the loop does not run
	Risk                             string // the broker cannot be stopped in time, and an operator knows (--i-know)
	Unsaved                          bool   // the next sidecar will not know what this one does

	Unleased, Detaches   bool   // no lease has a deadline; --detach
	Known, Held, Expired bool   // a lease was confirmed; its fence point has not passed; its deadline has
	Failing, Doubted     bool   // renewals fail; none was confirmed since the clocks jumped
	Refused              string // why there is no registration
	Rests                string // why the lease is not renewed
	Denied               string // a right that etcd denies; only a status asks

	Attachment Attachment
	Conflict   string // who else is registered in this broker's name
	Leaving    string // that the broker ends on purpose
	Restart    string // why somebody else must restart it
	Foreign    string // why the process that would be stopped is not the broker's

	AwaitGuard, NoGuard bool // its guard is to come; it did not, and is awaited no more

	Mode      ModeRecord
	Suspect   bool   // that mode is a suspicion
	Untold    string // why the broker is not in that mode
	Undrained string // the same of one that does not take its drain

	Up, Down      bool   // neither: nobody knows
	Error, Ill    string // of the last look at it; why it keeps its registration though it is ill
	Gone, Another bool   // it is proven to have ended; another process answers than the one that was decided about
	Stopped       string // by the guard or the fence; only a status asks
	Unable, Stale string // why it serves nobody well; why it does not see what changes in its cluster

	Unsettled          string // what is missing of its topics before clients may come
	Missing, Elsewhere int    // topics that are its own and not served; of those, served by others
	Tripped            string // the mass-change guard waits for an operator
	Vacant, Misplaced  bool   // no topic is placed here; an assignment is not where it was meant to be
}

// Hold is one reason why something may not happen now, or, where it blocks nothing, what an operator
// should know of a broker that serves.
type Hold struct {
	Name, Cause string // of the row; the condition of readiness that it breaks, empty: none
	Blocks      Blocks
	Severity    Severity
	Text        string                      // what is so
	fits        func(*Circumstances) string // empty: it is not so; its is: its text does not depend on the circumstances
}

// Holds is everything that holds a broker back, the first first: what says most of why it is so
// stands above what follows from it. Only of one that serves the rows that block nothing are of interest.
func Holds(c Circumstances) (holds []Hold) {
	for _, h := range holdTable {
		if h.Text = h.fits(&c); h.Text == "" || h.Blocks == 0 && keeps(holds) >= 0 {
			continue
		}
		if h.Text == its {
			h.Text = lineOf(holdsTxt, h.Name+" text")
		}
		holds = append(holds, h)
	}
	return holds
}

// keeps is the first of the holds that keeps clients away, -1: none does.
func keeps(holds []Hold) int {
	return slices.IndexFunc(holds, func(h Hold) bool { return h.Blocks&Ready != 0 })
}

// Holds reports whether anything keeps that from happening.
func (c Circumstances) Holds(what Blocks) bool {
	return slices.ContainsFunc(holdTable, func(h Hold) bool { return h.Blocks&what != 0 && h.fits(&c) != "" })
}

// holdsTxt has for each row the state in one sentence with the next step, and its text. Words in braces stand for
// what the caller knows.
//
//go:embed holds.txt
var holdsTxt string

// Say is the sentence of the first of the holds that has one, and that hold.
func Say(holds []Hold) (sentence string, of Hold) {
	for _, h := range holds {
		if text := lineOf(holdsTxt, h.Name); text != "" {
			return text, h
		}
	}
	if first := keeps(holds); first >= 0 {
		return lineOf(holdsTxt, "unready"), holds[first]
	}
	return lineOf(holdsTxt, "serves"), Hold{}
}

// Judge says how much the holds matter. What somebody asked for is no trouble, nor is what was never
// in the cluster; who was ready once is missed.
func Judge(c Circumstances, holds []Hold) (worst Severity) {
	for _, h := range holds {
		worst = max(worst, h.Severity)
	}
	ready, decided := keeps(holds) < 0, c.Mode.Mode != ""
	asked := decided && c.Mode.Mode != Active && (c.Mode.By != ByHoldfast || c.Mode.Reason == ReasonJoin)
	switch {
	case ready && worst == OK && c.Paused != "":
		return Info
	case ready, c.Restart != "", c.Conflict != "":
	case c.Leaving != "":
		return Info
	case c.Stopped != "":
	case !decided && c.Refused == "":
		return Info
	case !decided && !c.WasRegistered:
		return Warning
	case asked && c.Undrained == "" && (c.Attachment != Detached || c.Down): // one that is being worked on may be down
		return Info
	case asked:
		return Warning
	case worst == Info && c.EverReady:
		return Warning
	}
	if c.Shadow { // nothing was done: clients come as before
		worst = min(worst, Warning)
	}
	return worst
}

// Causes are the conditions of readiness, as ready_cause has them; the last is the sidecar's own.
var Causes = []string{"lease", "attached", "mode", "broker", "guard", "work", "steer", "topics", "agent"}

type facts = *Circumstances

// its is the text that a row has in holdsTxt.
const its = "{its}"

// when is the text of a row while that is so.
func when(so bool, text string) string {
	if so {
		return text
	}
	return ""
}

// holdTable is the table of what holds a broker back. Each row stands for itself: none needs another one.
var holdTable = []Hold{
	{"restart", "attached", Ready, Critical, "", func(c facts) string { return c.Restart }},
	{"conflict", "attached", noService | Attach | Assert, Critical, "", func(c facts) string { return c.Conflict }},
	{"leaving", "attached", noService, Info, "", func(c facts) string { return c.Leaving }},
	{"stopped", "broker", Ready, Critical, "", func(c facts) string { return when(!c.Up, c.Stopped) }},
	{"gone", "broker", Ready | Load, Critical, "", func(c facts) string { return when(c.Gone, its) }},
	{"ill", "broker", Ready, Critical, "", func(c facts) string { return when(!c.Up && c.Ill != "", c.health()) }},
	{"down", "broker", Ready | Load | Topics | Steer, Critical, "", func(c facts) string { return when(c.Down, c.health()) }},
	{"unknown", "broker", Ready, Warning, "", func(c facts) string { return when(!c.Up && !c.Down, c.health()) }},
	{"another", "broker", Ready | Load | Topics | Steer, Info, "", func(c facts) string { return when(c.Another, its) }},
	{"away", "lease", Ready, Info, "", func(c facts) string { return when(c.Unleased && c.Expired, its) }},
	{"refused", "lease", Ready, Info, "", func(c facts) string { return when(!c.Known && c.Refused != "", its) }},
	{"unregistered", "lease", Ready | Start, Info, "", func(c facts) string { return when(!c.Known, cmp.Or(c.Rests, its)) }},
	{"late", "lease", Ready | Start, Info, "", func(c facts) string { return when(c.Detaches && c.Known && !c.Held, its) }},
	{"doubt", "lease", noService | Attach | Assert | Start, Info, "", func(c facts) string { return when(c.Doubted, its) }},
	{"cut", "attached", Ready, Critical, "", func(c facts) string { return when(c.Attachment == Detached && c.Failing, its) }},
	{"detached", "attached", noService | Assert, Critical, "", func(c facts) string { return when(c.Attachment == Detached, its) }},
	{"undecided", "mode", Ready | Load | Topics | Steer | Places, Critical, "",
		func(c facts) string { return when(!c.Mode.Mode.Known(), its) }},
	{"undrained", "mode", Ready, Warning, "",
		func(c facts) string { return when(c.Mode.Mode == Drained && c.Undrained != "", c.Mode.words()) }},
	{"suspect", "mode", Ready | Load | Steer | Takes, Warning, "",
		func(c facts) string { return when(c.Suspect, c.Mode.words()) }},
	{"drained", "mode", Ready | Load, Warning, "", func(c facts) string { return when(c.Mode.Mode == Drained, c.Mode.words()) }},
	{"draining", "mode", Ready | Load, Warning, "", func(c facts) string { return when(c.Mode.Mode == Draining, c.Mode.words()) }},
	{"guard", "guard", Ready | Load | Topics | Tell | Attach, Info, "", func(c facts) string { return when(c.AwaitGuard, its) }},
	{"paused", "", Load | Takes | Assert, OK, "", func(c facts) string { return when(c.Paused != "", "paused by "+c.Paused) }},
	{"unable", "work", Ready, Info, "", func(c facts) string { return c.Unable }},
	{"untold", "steer", Ready, Info, "", func(c facts) string { return when(c.Mode.Mode == Active, c.Untold) }},
	{"unsettled", "topics", Ready, Info, "", func(c facts) string { return c.Unsettled }},
	{"stuck", "agent", Ready, Info, "", func(c facts) string { return c.Stuck }},

	// What an operator should know of a broker that serves.
	{"failing", "", 0, Warning, "", func(c facts) string { return when(c.Failing, its) }},
	{"elsewhere", "", 0, OK, "", func(c facts) string { return when(c.Missing > 0 && c.Missing == c.Elsewhere, its) }},
	{"stale", "", 0, Warning, "", func(c facts) string { return c.Stale }},
	{"missing", "", 0, Warning, "", func(c facts) string { return when(c.Missing > c.Elsewhere, its) }},
	{"tripped", "", 0, Warning, "", func(c facts) string { return c.Tripped }},
	{"unstoppable", "", 0, Warning, "", func(c facts) string { return c.Foreign }},
	{"risk", "", 0, Warning, "", func(c facts) string { return c.Risk }},
	{"unguarded", "", 0, Warning, "", func(c facts) string { return when(c.NoGuard, its) }},
	{"vacant", "", 0, OK, "", func(c facts) string { return when(c.Vacant, its) }},
	{"denied", "", 0, Warning, "", func(c facts) string { return c.Denied }},
	{"misplaced", "", 0, Warning, "", func(c facts) string { return when(c.Misplaced || c.Unsaved, its) }},
}

// health is the verdict on the broker, and its error.
func (c *Circumstances) health() string {
	word := map[bool]string{true: "down", false: "unknown"}[c.Down]
	if c.Ill != "" {
		word += ", held (" + c.Ill + ")"
	}
	return strings.TrimSuffix(word+": "+c.Error, ": ")
}

// words are the mode with its reason.
func (m ModeRecord) words() string { return string(m.Mode) + " (" + string(m.Reason) + ")" }

// lineOf is the line of a text that begins with that name; empty: it has none.
func lineOf(text, name string) string {
	for line := range strings.Lines(text) {
		if said, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSuffix(said, "\n")
		}
	}
	return ""
}
