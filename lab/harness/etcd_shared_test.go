package harness

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestWhoSharesAnEtcdSeesItsOwnKeysAlone(t *testing.T) {
	l := ForTest(t)
	e, err := l.StartEtcd(t.Context(), EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var histories []*History
	for _, prefix := range []string{"/a", "/b"} {
		mine, err := l.Below(e, prefix)
		if err != nil {
			t.Fatal(err)
		}
		h, err := l.Watch(t.Context(), mine, "/")
		if err != nil {
			t.Fatal(err)
		}
		histories = append(histories, h)
		lease, err := mine.Client().Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mine.Client().Put(t.Context(), "/key", prefix, clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
		if res, err := e.Client().Get(t.Context(), prefix+"/key"); err != nil || len(res.Kvs) != 1 || string(res.Kvs[0].Value) != prefix {
			t.Errorf("%s/key: %v, %v", prefix, res, err)
		}
		if _, err := mine.Client().Revoke(t.Context(), lease.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range histories {
		if _, err := h.Await(t.Context(), Patience, "the end of its key", 0, DeletedKey("/key")); err != nil {
			t.Error(err)
		}
		if all := h.Changes(); len(all) != 2 {
			t.Errorf("%v, want one put and one deletion", all)
		}
	}
}
