package registration

import (
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/note"
)

func TestACutThatIsNotedLateEndsWhenItEnded(t *testing.T) {
	o := newOutage(t, "drain")
	back := o.snapshot().Revision
	o.past.CutFrom, o.past.CutOver = time.Now(), back
	if _, err := o.store.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("life")}); err != nil {
		t.Fatal(err)
	}
	o.establish(o.first.LeaseID)
	if c := o.snapshot().Member.Cut; c == nil || c.Revision != back {
		t.Errorf("noted %+v, want the end at revision %d", c, back)
	}
}

// Else the fleet would not know of those that were restarted in a cut and kept theirs.
func TestASidecarThatWasRestartedInACutNotesIt(t *testing.T) {
	for _, c := range []struct {
		name  string
		older int64         // the note is of an earlier renewal than the one that is remembered, by so many revisions
		ago   time.Duration // since its lease was over
		noted bool
	}{
		{"the sidecar did not run beyond its fence point", 0, 0, true},
		{"it did not run for a moment", 0, -30 * time.Second, false},
		{"what it noted last is not all that is remembered", 1, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutage(t, "drain")
			over := time.Now().Add(-c.ago)
			o.stood, o.Before = false, note.Confirmed{Revision: o.past.Past.ConfirmedAt - c.older, Deadline: over}
			o.establish(o.first.LeaseID)
			if cut := o.snapshot().Member.Cut; (cut != nil) != c.noted || cut != nil && !cut.From.Equal(over.Add(-o.ttl()).UTC()) {
				t.Errorf("noted %+v, its lease was over %v", cut, over)
			}
		})
	}
}

// With a registration that was lost, as long as it lasted.
func TestACutOfAMomentIsNotNoted(t *testing.T) {
	for _, long := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := newOutage(t, "drain")
			o.past.CutFrom = time.Now()
			if o.unregister("n1"); long {
				time.Sleep(o.ttl() - o.Config.LeaseDetachMargin + 1)
			}
			o.establish(0)
			if cut := o.snapshot().Member.Cut; (cut != nil) != long {
				t.Errorf("noted %+v, long: %t", cut, long)
			}
		})
	}
}
