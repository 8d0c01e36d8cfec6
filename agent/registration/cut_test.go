package registration

import (
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
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
