package recovery

import (
	"reflect"
	"testing"
)

func TestTheRenewalFollowsTheBrokersLife(t *testing.T) {
	type facts = RenewalFacts
	for _, row := range []struct {
		name string
		f    facts
		want LeaseOrder
	}{
		{"up", facts{Up: true}, Renew},
		{"up, its process proven to have ended since", facts{Up: true, Renewed: true, Gone: true}, Rests},
		{"unknown, its process proven to have ended", facts{Renewed: true, Gone: true}, Rests},
		{"up, and given up", facts{Up: true, Renewed: true, GivenUp: true, Lives: true}, RunsOut},
		{"the same, just noted", facts{Up: true, Renewed: true, GivenUp: true, Noted: true, Lives: true, Paused: true}, Revokes},
		{"the same, and it goes by its TTL alone", facts{Up: true, GivenUp: true, Noted: true, Registers: true, MustStop: true}, RunsOut},
		{"up, not named yet", facts{Up: true, Unnamed: true, Lives: true}, RunsOut},
		{"up, its data directory was not read", facts{Up: true, Unread: true}, Rests},
		{"the same, renewed before", facts{Up: true, Unread: true, Renewed: true}, Rests},
		{"up, its data to be looked at", facts{Up: true, Unseen: true}, Rests},
		{"the same, renewed before: a restart costs nothing", facts{Up: true, Unseen: true, Renewed: true}, Renew},
		{"another answers, and the one before was awaited long enough", facts{Up: true, Renewed: true, Overdue: true, Registers: true, MustStop: true}, RunsOut},
		{"down", facts{Down: true, Renewed: true}, Rests},
		{"down, ending on purpose", facts{Down: true, Renewed: true, Ending: true}, Renew},
		{"down, ending on purpose, and ended", facts{Down: true, Renewed: true, Ending: true, Gone: true}, Rests},
		{"ill with the others", facts{Down: true, Ails: true, HeldIll: true}, Renew},
		{"ill alone", facts{Down: true, Renewed: true, Ails: true}, RunsOut},
		{"down, its process there", facts{Down: true, Renewed: true, Lives: true}, RunsOut},
		{"down in a pause", facts{Down: true, Renewed: true, Paused: true}, RunsOut},
		{"ended, to be noted", facts{Down: true, Renewed: true, Gone: true, Note: true}, RunsOut},
		{"ended, and goes by its TTL alone", facts{Down: true, Renewed: true, Gone: true, Registers: true, MustStop: true}, RunsOut},
		{"ended, and registers itself", facts{Down: true, Renewed: true, Gone: true, Registers: true}, Rests},
		{"unknown", facts{}, Rests},
		{"unknown, renewed before", facts{Renewed: true}, Renew},
		{"refuses us, and holds a lease", facts{Refuses: true, Held: true}, Renew},
		{"refuses us, and its lease is over", facts{Refuses: true}, Rests},
		{"says nothing, and holds a lease", facts{Held: true}, Rests},
		{"refuses us, not named", facts{Refuses: true, Held: true, Unnamed: true}, Rests},
		{"refuses us, and is one process's own", facts{Refuses: true, Held: true, Registers: true}, Rests},
		{"refuses us, and its storage fences it", facts{Refuses: true, Held: true, FencesSelf: true}, Rests},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got, why := OrderLease(row.f); got != row.want || why == "" {
				t.Errorf("order %d (%s), want %d", got, why, row.want)
			}
		})
	}
}

// Safety rules 10 and 13: whatever else is so, a process that has ended is not renewed, nor one that is
// down and neither ill with the others nor ending; and what is seen to live is not revoked.
func TestNoOrderRenewsTheDeadOrRevokesTheLiving(t *testing.T) {
	fields := reflect.TypeFor[RenewalFacts]().NumField()
	for bits := range 1 << fields {
		var f RenewalFacts
		v := reflect.ValueOf(&f).Elem()
		for i := range fields {
			v.Field(i).SetBool(bits>>i&1 == 1)
		}
		order, why := OrderLease(f)
		switch {
		case order == Renew && (f.Gone || f.GivenUp || f.Down && !f.Up && !f.Ending && !f.HeldIll):
			t.Fatalf("%+v: renewed: %s", f, why)
		case order == Rests && (f.Lives || f.Ails || f.Note || f.Paused):
			t.Fatalf("%+v: revoked after the grace: %s", f, why)
		case order == Revokes && !f.Noted:
			t.Fatalf("%+v: revoked at once: %s", f, why)
		}
	}
}
