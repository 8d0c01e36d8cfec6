package harness

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What the lab has such a server for: nobody who asks it hears that the lease is gone.
func TestALeaderThatHangsConfirmsALeaseThatIsGone(t *testing.T) {
	if err := CanHang(); err != nil {
		t.Skip(err)
	}
	bin, err := LyingEtcd()
	if err != nil {
		t.Skip(err)
	}
	l, ctx := ForTest(t), t.Context()
	c, err := l.StartEtcdCluster(ctx, 3, EtcdOptions{Binary: bin, Fsync: true})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.Client().Grant(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client().Put(ctx, "/a", "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	hung, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	id, err := memberID(ctx, c.Other(hung))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hung.Client().MoveLeader(ctx, id); err != nil { // it gets the lead back
		t.Fatal(err)
	}
	if err := c.HangLeader(ctx, hung); err != nil {
		t.Fatal(err)
	}
	h, err := l.Watch(ctx, c.Other(hung), "/a")
	if err != nil {
		t.Fatal(err)
	}
	renew := func() (*clientv3.LeaseKeepAliveResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return hung.Client().KeepAliveOnce(ctx, lease.ID)
	}
	for gone := false; !gone; _, gone = h.Find(h.From, DeletedKey("/a")) {
		if _, err := renew(); err != nil {
			t.Fatalf("while the key is there: %v", err)
		}
	}
	for range 10 {
		if res, err := renew(); err != nil || res.TTL != 3 {
			t.Fatalf("the key is gone: %+v, %v; want a confirmation", res, err)
		}
	}
	asked, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if res, err := hung.Client().Get(asked, "/a"); err == nil {
		t.Errorf("a read was answered: %+v", res)
	}
}
