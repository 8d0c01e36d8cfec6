package agent

import (
	"errors"
	"testing"
	"time"

	"holdfast/agent/lease"
	"holdfast/recovery"
)

// What is written while a broker ends would send clients to it; while it begins another session,
// it would be in its way.
func TestARegistrationThatItsBrokerHasDeletedIsNotWrittenAgainAtOnce(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(a adopted)
		waits  bool
		after  time.Duration
		row    recovery.Reason // afterwards; empty: it goes on to wait
	}{
		{"it is still there", func(a adopted) { a.del("n1") }, true, 4 * time.Second, recovery.RowReconnected},
		{"it ends", func(a adopted) { a.del("n1"); a.registrar.up = func(string) bool { return false } }, true, time.Minute, ""},
		{"it has another session by then", func(a adopted) {
			a.del("n1")
			time.AfterFunc(time.Second, func() { a.put("n1", a.session()) })
		}, true, 1500 * time.Millisecond, recovery.RowSurvived},
		{"its session has ended", func(a adopted) { a.lose() }, false, 0, recovery.RowReconnected},
	} {
		inBubble(t, row.name, func(t *testing.T) {
			a := newAdopted(t, nil)
			began, boot := time.Now(), lease.BootClock()
			a.registrar.clock = func() lease.Instant { return boot.Add(time.Since(began)) }
			row.change(a)
			before := a.snapshot()
			_, err := a.Establish(t.Context(), a.first.LeaseID, false)
			if waits := errors.Is(err, lease.ErrDeferred) && a.snapshot().Revision == before.Revision; waits != row.waits {
				t.Fatalf("%v at revision %d, before %d", err, a.snapshot().Revision, before.Revision)
			}
			if time.Sleep(row.after); row.waits {
				_, err = a.Establish(t.Context(), a.first.LeaseID, false)
			}
			switch {
			case row.row == "" && !errors.Is(err, lease.ErrDeferred):
				t.Errorf("%v, want that it is waited for", err)
			case row.row != "" && err != nil:
				t.Error(err)
			case row.row != "":
				a.decided(row.row, recovery.Active)
			}
		})
	}
}
