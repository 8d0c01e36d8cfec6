package moves

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// course is one move, told line by line: in which phase which broker does what, and what the
// journal says then.
type course struct {
	m     Move
	now   time.Time
	facts map[Side]Facts
	told  bytes.Buffer
}

func newCourse(about string) *course {
	c := &course{m: moveIn(Pending), now: noon, facts: map[Side]Facts{Source: {Side: Source}, Target: {Side: Target}}}
	fmt.Fprintf(&c.told, "%s\n\n", about)
	c.tell("pending", "an operator has /d/t moved from a to b: %s", three().text())
	return c
}

// does are the acts in words.
var does = map[Act]string{
	Accept: "looks whether it can take the topic", Seal: "withdraws producers, pauses consumers and seals",
	Copy: "copies what was sealed", HandOver: "looks once more and hands over", Resume: "serves",
	Compare: "compares what both have", Remove: "removes what it has left",
	Restore: "serves again", Discard: "removes what it has copied", GiveUp: "gives up",
}

func (c *course) tell(phase, format string, args ...any) {
	fmt.Fprintf(&c.told, "%-9s  %s\n", phase, fmt.Sprintf(format, args...))
	var who []string
	for _, side := range []Side{Source, Target} {
		if c.m.Held(side) {
			who = append(who, map[Side]string{Source: "a", Target: "b"}[side])
		}
	}
	journal := string(c.m.Phase)
	if c.m.Error != "" {
		journal += fmt.Sprintf(", error %q%s", c.m.Error, at(c.m.Where))
	}
	if !c.m.Phase.Over() {
		journal += "; the topic is assigned to " + c.m.Owner()
	}
	if len(who) > 0 {
		journal += ", and held for this move at " + strings.Join(who, " and ")
	}
	fmt.Fprintf(&c.told, "           the journal says %s\n", journal)
}

// turn is who has to act now, and how.
func (c *course) turn() (broker string, s Step) {
	for _, side := range []Side{Source, Target} {
		if s = c.m.Next(c.facts[side]); s.Act != Wait {
			return map[Side]string{Source: "a", Target: "b"}[side], s
		}
	}
	return "", s
}

// good is what comes of an act where all goes well.
func good(a Act) Outcome {
	switch a {
	case Seal, Copy, HandOver, Resume, Restore:
		return Outcome{Extent: three()}
	case Compare:
		return Outcome{Content: &Content{Compared: 3, Hash: "5f2c", Synced: "/data"}, Extent: three()}
	}
	return Outcome{}
}

// goes has whoever's turn it is act, so often, and all goes well.
func (c *course) goes(times int) *course {
	for range times {
		_, s := c.turn()
		c.comes(good(s.Act))
	}
	return c
}

// comes is an act with that outcome.
func (c *course) comes(o Outcome) *course {
	c.now = c.now.Add(time.Second)
	broker, s := c.turn()
	phase := string(c.m.Phase)
	c.m, _ = c.m.After(s, o, broker, c.now)
	what := ""
	switch {
	case s.Act == GiveUp:
		what = ": " + s.Why
	case o.Final:
		what = ", refused: " + o.Err.Error()
	case o.Err != nil:
		what = ", in vain: " + o.Err.Error()
	case o.Content != nil && o.Content.Differs != "":
		what = ": " + o.Content.Differs
	case o.Content != nil:
		what = fmt.Sprintf(": %d messages are equal", o.Content.Compared)
	case o.Extent != nil:
		what = ": " + o.Extent.text() + o.Extent.floors()
	}
	c.tell(phase, "%s %s%s", broker, does[s.Act], what)
	return c
}

// ends is an act after which the sidecar dies, before the journal has it.
func (c *course) ends() *course {
	broker, s := c.turn()
	fmt.Fprintf(&c.told, "%-9s  %s %s, and its sidecar dies before it is written\n", c.m.Phase, broker, does[s.Act])
	return c
}

func (c *course) note(format string, args ...any) *course {
	fmt.Fprintf(&c.told, "%-9s  %s\n", "", fmt.Sprintf(format, args...))
	return c
}

func (c *course) cancels() *course {
	phase := string(c.m.Phase)
	n, err := c.m.Cancel("an operator", c.now)
	if err != nil {
		return c.note("an operator calls it off: %s", err)
	}
	c.m = n
	c.tell(phase, "an operator calls it off")
	return c
}

func refused(why string) Outcome { return Outcome{Err: errors.New(why), Final: true} }
func failed(why string) Outcome  { return Outcome{Err: errors.New(why)} }

func (c *course) targetGone(why string) *course {
	c.facts[Source] = Facts{Side: Source, PeerGone: why}
	return c
}

func (c *course) silent() *course {
	c.facts[Source] = Facts{Side: Source, Quiet: silence + time.Second}
	return c
}

func TestCoursesOfAMoveAreGolden(t *testing.T) {
	differs := Outcome{Content: &Content{Compared: 2, Differs: "message 2 has 11 bytes at a and 10 at b"}}
	crashes := newCourse("Either sidecar may die after any act, before the journal has it: the act is done again.")
	for !crashes.m.Phase.Over() {
		crashes.ends().goes(1)
	}
	for name, c := range map[string]*course{
		"good": newCourse("A move without trouble.").goes(7),
		"target_refuses": newCourse("The target cannot take the topic: nothing was touched.").
			comes(refused("b has room for 20 bytes, /d/t has 30")),
		"seal_fails": newCourse("The topic cannot be sealed: it serves again.").
			goes(1).comes(refused("consumer c has a message that it has not acknowledged")).goes(1),
		"seal_hangs": func() *course {
			c := newCourse("Sealing fails for more than a minute: the topic is not served meanwhile, so it serves again.").goes(1)
			c.comes(failed("the disk is slow"))
			c.now = c.now.Add(patience)
			return c.comes(failed("the disk is slow")).goes(1)
		}(),
		"target_dies": newCourse("The target dies while it copies: the source serves again. The copy goes when the target is back.").
			goes(2).targetGone("broker b is not registered any more").goes(2).note("b is back").goes(1),
		"cancelled": newCourse("Called off while it is copied: as if it had not been.").
			goes(2).cancels().cancels().comes(failed("a is not active")).goes(2).cancels(),
		"too_late": newCourse("After the handover nothing is called off, also when the target is gone: it is waited for.").
			goes(4).cancels().note("b is not registered any more").targetGone("gone").note("b is back").goes(3),
		"not_synced": newCourse("The sidecar of the target does not see its data directory.").
			goes(5).comes(Outcome{Content: &Content{Compared: 3, Hash: "5f2c"}, Extent: three()}).goes(1),
		"observed": newCourse("The brokers' own cluster keeps the messages: that the target serves is observed.").
			goes(5).comes(Outcome{Content: &Content{Observed: "served at b, as b says"}, Extent: three()}).goes(1),
		"crashes":         crashes,
		"contents_differ": newCourse("The contents differ: the target serves, and the source keeps what it has.").goes(5).comes(differs),
		"sealed_already": newCourse("Asked twice, sealed already: the source says the same, and goes on.").
			goes(1).ends().note("a finds the topic sealed by this move, and says where it stands").goes(1),
		"copy_lost": newCourse("The target loses what it has copied before it serves: it copies it once more.").
			goes(4).comes(refused("b does not have it")).comes(failed("a does not answer")).goes(4),
		"target_silent": newCourse("The target says nothing for three minutes while the topic is not served: the source serves again.").
			goes(2).silent().goes(2).note("b is of this version by now").goes(1),
		"source_gone": newCourse("The source is gone for good when the target serves: an operator ends the move, and nothing is removed.").
			goes(5).comes(failed("broker a is not registered")).cancels(),
		"taken": newCourse("Others assign the topic to another broker meanwhile: it is theirs, and all data is kept.").
			goes(2).note("somebody assigns it to c").taken().goes(1),
	} {
		t.Run(name, func(t *testing.T) {
			if !c.m.Phase.Over() && name != "sealed_already" {
				t.Errorf("it ends as %s", c.m.Phase)
			}
			fmt.Fprintf(&c.told, "\n%s\n\n%s\n", c.m.Line(), strings.Join(c.m.Receipt(), "\n"))
			path := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, c.told.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v: write it with -update", err)
			}
			if got := c.told.String(); got != string(want) {
				t.Errorf("another course than in %s, see git diff after -update:\n%s", path, got)
			}
		})
	}
}

func (c *course) taken() *course {
	for _, side := range []Side{Source, Target} {
		c.facts[side] = Facts{Side: side, Taken: "others have taken its assignment from a"}
	}
	return c
}
