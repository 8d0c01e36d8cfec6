package recovery

import (
	"encoding/json"
	"testing"
	"time"
)

func TestWhatMayGoOnDuringAPause(t *testing.T) {
	had := *byHoldfast(Active, ReasonBoot)
	for _, c := range []struct {
		name  string
		d     Decision
		waits bool
	}{
		{"the registration survived", Decision{Step: Keep, Mode: had}, false},
		{"it survived, its state key did not", Decision{Step: Keep, Mode: had, Write: true}, false},
		{"the broker restarted within the TTL", Decision{Step: Keep, Mode: *byHoldfast(Active, ReasonFastRestart), Write: true}, false},
		{"it survived, a person drained meanwhile", Decision{Step: Keep, Mode: *byPerson(Drained)}, false},
		{"it came back, and we were declared dead", Decision{Step: Keep, Mode: *byHoldfast(Drained, ReasonRegistrationExpired), Write: true}, true},
		{"another incarnation", Decision{Step: Conflict, Mode: had}, false},
		{"lost, to be drained", Decision{Step: Register, Mode: *byHoldfast(Drained, ReasonRegistrationExpired), Write: true}, true},
		{"lost, to be registered again", Decision{Step: Register, Mode: had, Write: true}, true},
		{"lost by the whole fleet", Decision{Step: Register, Mode: *byHoldfast(Active, ReasonFleetExpired), Write: true}, true},
		{"lost while drained by a person", Decision{Step: Register, Mode: *byPerson(Drained)}, true},
		{"back from a planned stop", Decision{Step: Register, Mode: *byHoldfast(Active, ReasonPlannedRestart), Write: true, Planned: true}, false},
		{"lost after a planned stop, to be registered again", Decision{Step: Register, Mode: *byHoldfast(Active, ReasonPlannedRestart)}, true},
		{"to be stopped", Decision{Step: Shutdown, Mode: had}, true},
	} {
		if got := c.d.Waits(had); got != c.waits {
			t.Errorf("%s: waits %v", c.name, got)
		}
	}
}

func TestAPersonsDrainIsCarriedOutDuringAPause(t *testing.T) {
	for _, c := range []struct {
		name string
		m    ModeRecord
		held bool
	}{
		{"active", *byHoldfast(Active, ReasonBoot), true},
		{"activated by a person", *byPerson(Active), true},
		{"draining by a person", *byPerson(Draining), true},
		{"drained by recovery", *byHoldfast(Drained, ReasonStaleRestart), true},
		{"drained by a person", *byPerson(Drained), false},
		{"not known yet", ModeRecord{}, true},
	} {
		if got := c.m.HeldByPause(); got != c.held {
			t.Errorf("%s: held %v", c.name, got)
		}
	}
}

func TestAPauseEndsByTheClockThatIsFirst(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const clock = 100 * time.Hour // since the boot
	made := NewPause("ops", "disk swap", time.Hour, now, "boot-1", clock)
	kept, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	var p Pause
	if err := json.Unmarshal(kept, &p); err != nil || p != made {
		t.Fatalf("%+v from the state file, want %+v: %v", p, made, err)
	}
	for _, c := range []struct {
		name  string
		wall  time.Duration // since it began
		boot  string
		clock time.Duration
		want  time.Duration
	}{
		{"at its begin", 0, "boot-1", clock, time.Hour},
		{"half of it over", 30 * time.Minute, "boot-1", clock + 30*time.Minute, 30 * time.Minute},
		{"a nanosecond before the end", time.Hour - 1, "boot-1", clock + time.Hour - 1, 1},
		{"at its end", time.Hour, "boot-1", clock + time.Hour, 0},
		{"the wall clock was set back", -5 * time.Hour, "boot-1", clock + 50*time.Minute, 10 * time.Minute},
		{"the wall clock was set back, and the time is over", -5 * time.Hour, "boot-1", clock + 2*time.Hour, -time.Hour},
		{"the wall clock was set forward", 3 * time.Hour, "boot-1", clock + time.Minute, -2 * time.Hour},
		{"after a boot", 20 * time.Minute, "boot-2", time.Minute, 40 * time.Minute},
		{"after a boot, the wall clock was set back", -5 * time.Hour, "boot-2", time.Minute, time.Hour},
	} {
		if got := p.Left(now.Add(c.wall), c.boot, c.clock); got != c.want {
			t.Errorf("%s: %v left, want %v", c.name, got, c.want)
		}
	}
}

func TestAfterABootThePauseIsBoundByTheNewBootsClock(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := NewPause("ops", "disk swap", time.Hour, now, "boot-1", 100*time.Hour)
	back := now.Add(-24 * time.Hour) // the wall clock of the new boot
	p = p.Rebase(back, "boot-2", time.Minute)
	if left := p.Left(back, "boot-2", time.Minute); left != time.Hour {
		t.Errorf("%v left after the boot", left)
	}
	if left := p.Left(back, "boot-2", 61*time.Minute); left != 0 {
		t.Errorf("%v left an hour later by a wall clock that stands still", left)
	}
	if again := p.Rebase(back, "boot-2", 30*time.Minute); again != p {
		t.Errorf("a sidecar restart made it longer: %+v", again)
	}
}
