package cluster

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Version asks the member that answers for its version, such as "3.5.28". A client of one endpoint
// asks that one. It needs no right in an etcd that asks who is there.
func (c *Client) Version(ctx context.Context) (version string, err error) {
	defer during(&err, "ask etcd for its version")
	answer, err := once(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.StatusResponse, error) {
		return etcdserverpb.NewMaintenanceClient(w.conn).Status(ctx, &etcdserverpb.StatusRequest{})
	})
	return answer.GetVersion(), err
}

// soundReads are the first releases whose linearizable reads are never stale, by their
// minor version of 3; all later minors have them from the start.
var soundReads = map[int]int{4: 42, 5: 28, 6: 9}

// StaleReads reports whether a member of that version may answer a linearizable read with
// what was true before the read was sent, and the release that ends it. A version that
// cannot be read is not reported.
func StaleReads(version string) (fixedIn string, stale bool) {
	var major, minor, patch int
	n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	if n < 3 || err != nil || major > 3 || major == 3 && minor > 6 {
		return "", false
	}
	if first, old := soundReads[minor]; old && major == 3 {
		return fmt.Sprintf("3.%d.%d", minor, first), patch < first
	}
	return "3.6.9", true // no release of an older minor will end it
}
