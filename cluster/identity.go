package cluster

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// otherClusterAfter is how long nobody of the known cluster must have answered before
// another one is believed: etcd restored from a backup is another cluster.
const otherClusterAfter = 2 * time.Minute

// Identity is the cluster that the endpoints of a configuration belong to: that of the
// first answer. An endpoint of another cluster knows nothing of our leases and keys, and
// says so; its answers are refused as if it were out of reach. With one endpoint there is
// nothing to compare, and whatever it answers counts. The zero value is ready to use, and
// safe for concurrent use.
//
// Not guaranteed: that the first answer comes from the right cluster (`holdfast check`
// compares all endpoints), nor that a write which is answered by another cluster did
// nothing there.
type Identity struct {
	mu   sync.Mutex
	id   uint64 // 0: nobody has answered
	last time.Time
}

// check takes an answer of the cluster id from an endpoint; an error says that it must
// not be believed.
func (i *Identity) check(id uint64, from string, now time.Time) error {
	if id == 0 {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.id != 0 && id != i.id && now.Sub(i.last) < otherClusterAfter {
		return status.Errorf(codes.Unavailable, "the etcd at %s is of cluster %x, and other endpoints are of cluster %x: take what does not belong there out of the etcd endpoints", from, id, i.id)
	}
	i.id, i.last = id, now
	return nil
}
