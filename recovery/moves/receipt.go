package moves

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// End says what a move that is over has come to: who serves the topic, and why it did not go well.
func (m Move) End() string {
	if m.Taken {
		return m.Error + "; " + "both brokers keep what they have of it, and whoever it is assigned to serves it"
	}
	if m.Sent && m.Phase != Done {
		return m.Error + "; who serves it is their own cluster's word: it may have been given away all the same"
	}
	at := m.From
	if m.Phase == Done || m.Served != nil {
		at = m.Target()
	}
	text := fmt.Sprintf("%s serves %s", at, m.Topic)
	if m.Error != "" {
		text = m.Error + "; " + text
	}
	if m.Phase == Returned {
		text += fmt.Sprintf(", and what %s has copied is removed when it is there", m.To)
	}
	switch {
	case m.Phase != Failed || m.Served == nil:
	case m.Same != nil && m.Same.Observed == "": // it was being removed
		text += fmt.Sprintf(", every message was compared, and what %s still has may be removed there", m.From)
	default:
		text += fmt.Sprintf(", and %s keeps what it had, withdrawn: compare them before you remove it there", m.From)
	}
	return text
}

// Receipt says of a move, in lines, all that is known of it.
func (m Move) Receipt() (lines []string) {
	say := func(name, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("%-10s %s", name, fmt.Sprintf(format, args...)))
	}
	say("move", "%s: %s from %s to %s: %s", m.ID, m.Topic, m.From, m.Target(), m.Phase)
	say("by", "%s, %s", m.By, m.At.Format(time.DateTime))
	if m.Error != "" {
		say("error", "%s%s", m.Error, at(m.Where))
	}
	for _, side := range []struct {
		name string
		*Extent
	}{{"sealed", m.Sealed}, {"copied", m.Copied}, {"resumed", m.Served}} {
		if side.Extent != nil {
			say(side.name, "%s%s", side.text(), side.floors())
		}
	}
	if m.Copied != nil {
		say("hashes", "configuration %s, schema %s, on both sides", cmp.Or(m.Copied.Config, "not known"), cmp.Or(m.Copied.Schema, "not known"))
	}
	if m.Served != nil && m.Sealed != nil {
		say("first", "message that the target takes: %d", m.Sealed.Last+1)
	}
	if c := m.Same; c != nil {
		if c.Observed != "" {
			say("observed", "%s", c.Observed)
		} else {
			say("compared", "%s, equal in sequence, subject, headers and payload, hash %s; %d gone since by their limits", plural(c.Compared, "message"), c.Hash, c.Gone)
			synced := fmt.Sprintf("the file system of %s at %s, before what was left at %s was removed", c.Synced, m.To, m.From)
			if c.Synced == "" {
				synced = fmt.Sprintf("nothing: the sidecar of %s does not see its data directory", m.To)
			}
			say("synced", "%s", synced)
		}
	}
	if gap := m.Gap(); gap > 0 {
		say("producers", "were refused for %s, from the seal to the resume, and retried", gap.Round(time.Millisecond))
	}
	if took := m.times(); took != "" {
		say("times", "%s", took)
	}
	if m.Sealed != nil && m.Sealed.Rests != "" {
		say("rests on", "%s", m.Sealed.Rests)
	}
	if m.Phase.Over() || m.Phase == Returned {
		say("end", "%s", m.End())
	}
	return lines
}

// Gap is how long producers were refused at most; 0: it is not known yet.
func (m Move) Gap() time.Duration {
	began, ok := m.Since[Draining]
	for _, end := range []Phase{Resumed, Returned, Failed, Cancelled} {
		if over, ended := m.Since[end]; ok && ended {
			return over.Sub(began)
		}
	}
	return 0
}

// times are how long each phase took that has ended, in their order.
func (m Move) times() string {
	order := slices.SortedFunc(maps.Keys(m.Since), func(a, b Phase) int {
		return cmp.Or(m.Since[a].Compare(m.Since[b]), cmp.Compare(slices.Index(Phases, a), slices.Index(Phases, b)))
	})
	var parts []string
	for i := 1; i < len(order); i++ {
		parts = append(parts, fmt.Sprintf("%s %s", order[i-1], m.Since[order[i]].Sub(m.Since[order[i-1]]).Round(time.Millisecond)))
	}
	return strings.Join(parts, ", ")
}

func (e *Extent) floors() string {
	var parts []string
	for _, consumer := range slices.Sorted(maps.Keys(e.Floors)) {
		parts = append(parts, fmt.Sprintf("%s at %d", consumer, e.Floors[consumer]))
	}
	if len(parts) == 0 {
		return ""
	}
	return "; consumers " + strings.Join(parts, ", ")
}

func at(broker string) string {
	if broker == "" {
		return ""
	}
	return " (said by " + broker + ")"
}
