package recovery

import (
	"strings"
	"testing"
	"time"
)

// asked is a suspicion of a loss after revision 100, registered again at 200; n2 stood at the first look, at 210.
func asked() Suspicion {
	return Suspicion{Suspect: Suspect{Lost: Proven{100, noon}, Row: ReasonStaleRestart}, Written: 200, At: 210, Term: 1, Stood: []Standing{{"n2", 50}}}
}

func TestWhatALookMakesOfASuspicion(t *testing.T) {
	due := asked().Due(rules)
	n2 := Companion{Name: "n2", Epoch: 50, Since: 50, Written: 60}
	with := func(change func(p *Companion)) []Companion {
		p := n2
		change(&p)
		return []Companion{p}
	}
	cut := func(at time.Time) []Companion { return with(func(p *Companion) { p.Cut = at }) }
	mostOften := func(s *Suspicion, _ *Rules) { s.Anew = mostAnew }
	for _, c := range []struct {
		name   string
		now    time.Duration
		look   Look
		change func(*Suspicion, *Rules)
		answer Answer
		says   string // a part of its sentence
	}{
		{"the era began since", 0, Look{Era: 201, Companions: []Companion{n2}}, nil, NobodyLived, "no broker was registered"},
		{"the era of its own registration", 0, Look{Era: 200, Companions: []Companion{n2}}, nil, StillOpen, "lived on"},

		{"the share is asked a renewal later", rules.Renewal, Look{Companions: cut(noon.Add(rules.TTL))}, nil, NobodyLived, "of 1 others"},
		{"and not before", rules.Renewal - 1, Look{Companions: cut(noon)}, nil, StillOpen, "lived on"},
		{"cut a TTL later, and a little", rules.Renewal, Look{Companions: cut(noon.Add(rules.TTL + 1))}, nil, StillOpen, "lived on"},
		{"cut a TTL earlier", rules.Renewal, Look{Companions: cut(noon.Add(-rules.TTL))}, nil, NobodyLived, "of 1 others"},
		{"the time of our own is not known", rules.Renewal, Look{Companions: cut(noon)}, func(s *Suspicion, _ *Rules) { s.Lost.At = time.Time{} }, StillOpen, "lived on"},
		{"a record that cannot be read was not hit", rules.Renewal, Look{Companions: with(func(p *Companion) { p.Cut, p.Unread = noon, "?" })}, nil, StillOpen, "lived on"},
		{"the share is off", rules.Renewal, Look{Companions: []Companion{n2}}, func(_ *Suspicion, r *Rules) { r.Share = 0 }, StillOpen, "lived on"},
		{"none is registered that could be hit", rules.Renewal, Look{Companions: with(func(p *Companion) { p.Epoch, p.Cut = 0, noon })}, nil, StillOpen, "lived on"},
		{"one of three", rules.Renewal, Look{Companions: append(cut(noon), Companion{Name: "n3", Epoch: 1}, Companion{Name: "n4", Epoch: 2})}, nil, StillOpen, "lived on"},

		{"a leader was elected", due, Look{Term: 2, Companions: []Companion{n2}}, nil, StillOpen, "elected"},
		{"a leader was elected, too often", due, Look{Term: 2, Companions: []Companion{n2}}, mostOften, SomebodyLived, "n2"},
		{"it is not due", due - 1, Look{Companions: []Companion{n2}}, nil, StillOpen, "whether"},
		{"it stands", due, Look{Companions: []Companion{n2}}, nil, SomebodyLived, "n2"},
		{"it is gone without a note", due, Look{}, nil, StillOpen, "n2 was registered and is gone"},
		{"it is gone without a note, and has a record", due, Look{Companions: with(func(p *Companion) { p.Epoch = 0 })}, nil, StillOpen, "n2 was registered and is gone"},
		{"it is gone without a note, too often", due, Look{}, mostOften, NobodyLived, "nobody"},
		{"it left as planned", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Left, p.Written = 0, 220, 220 })}, nil, SomebodyLived, "n2"},
		{"it left as planned at our last renewal", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Left, p.Written = 0, 100, 220 })}, nil, SomebodyLived, "n2"},
		{"it had left before ours, and came and went", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Left, p.Written = 0, 99, 220 })}, nil, NobodyLived, "nobody"},
		{"it stood at our last renewal", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Written = 100, 220 })}, nil, SomebodyLived, "n2"},
		{"it registered since", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Since, p.Written = 101, 101, 220 })}, nil, NobodyLived, "nobody"},
		{"it registered since, and its life is not known", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Since, p.Away, p.Written = 101, 0, 150, 220 })}, nil, NobodyLived, "nobody"},
		{"it restarted as planned since", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Since, p.Away, p.Written = 215, 100, 101, 215 })}, nil, SomebodyLived, "n2"},
		{"it restarted as planned before our last renewal, and registered since", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Since, p.Away, p.Written = 215, 50, 100, 215 })}, nil, NobodyLived, "nobody"},
		{"its life began after our last renewal", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Since, p.Away, p.Written = 215, 101, 150, 215 })}, nil, NobodyLived, "nobody"},
		{"another registration than the one that stood, of the same record", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Away, p.Written = 90, 150, 210 })}, nil, NobodyLived, "nobody"},
		{"it is a suspect itself", due, Look{Companions: with(func(p *Companion) { p.Suspect = true })}, nil, NobodyLived, "nobody"},
		{"it was hit as well, too few", due, Look{Companions: append(cut(noon), Companion{Name: "n3", Epoch: 101}, Companion{Name: "n4", Epoch: 102})}, nil, NobodyLived, "nobody"},
		{"its record cannot be read, and it stands", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Written, p.Unread = 101, 220, "?" })}, nil, SomebodyLived, "n2"},
		{"it has no record, and registered since", due, Look{Companions: with(func(p *Companion) { p.Epoch, p.Bare, p.Away, p.Written = 101, true, 150, 220 })}, nil, NobodyLived, "nobody"},
		{"who stands now did not stand then", due, Look{Companions: []Companion{{Name: "n3", Epoch: 20, Since: 20}, {Name: "n2", Epoch: 101, Since: 101, Written: 220}}}, nil, NobodyLived, "nobody"},
	} {
		s, r := asked(), rules
		if c.change != nil {
			c.change(&s, &r)
		}
		c.look.Now = c.now
		if c.look.Term == 0 {
			c.look.Term = 1
		}
		after, answer, says := s.Review(c.look, r)
		if answer != c.answer || !strings.Contains(says, c.says) {
			t.Errorf("%s: answer %d, %q", c.name, answer, says)
		}
		anew := strings.Contains(says, "begins anew")
		if anew != (after.Anew == s.Anew+1) || anew && after.From != c.now {
			t.Errorf("%s: the look is at %+v, before %+v", c.name, after, s)
		}
	}
}

func TestWhoStoodAtTheFirstLook(t *testing.T) {
	all := []Companion{{Name: "n2", Epoch: 50}, {Name: "n3", Epoch: 60, Suspect: true}, {Name: "n4", Left: 150}, {Name: "n5"}}
	names := func(s Suspicion) (names string) {
		for _, st := range s.Stood {
			names += st.Name + " "
		}
		return names
	}
	first := Begin(asked().Suspect, 200, Look{Now: 7, At: 210, Term: 1, Companions: all})
	if got := names(first); got != "n2 " || first.Begun != 7 || first.Written != 200 {
		t.Errorf("stood: %s%+v", got, first)
	}
	// One that left as planned after the first look stays a witness when the look begins anew.
	later, _, _ := first.Review(Look{Now: 9, Term: 2, Companions: []Companion{{Name: "n2", Left: 220}, {Name: "n4", Left: 150}, {Name: "n6", Epoch: 5}}}, rules)
	if got := names(later); got != "n2 n6 " || later.Begun != 7 {
		t.Errorf("stood at the second: %s%+v", got, later)
	}
}

func TestWhenASuspicionLooksAgain(t *testing.T) {
	due := asked().Due(rules)
	for now, want := range map[Instant]Instant{
		0:                       rules.Renewal,
		due - 1:                 due,
		due:                     due + rules.Renewal,
		due - rules.Renewal:     due,
		due - rules.Renewal - 1: due - 1,
	} {
		if got := asked().Next(now, rules); got != want {
			t.Errorf("after %v: %v, want %v", now, got, want)
		}
	}
}

func TestTheModeAfterASuspicion(t *testing.T) {
	for row, want := range map[Reason]Reason{ReasonStaleRestart: ReasonFullClusterRestart, ReasonRegistrationExpired: ReasonFleetExpired} {
		if m := (Suspicion{Suspect: Suspect{Row: row}}).Lift(); m != (ModeRecord{Active, want, ByHoldfast}) {
			t.Errorf("%s: %+v", row, m)
		}
	}
}
