package cluster

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// LeaseLeft is what etcd says of how long a lease still lasts.
type LeaseLeft struct {
	Found bool
	// Left is rounded down to the second. Just after an election it may be more than was
	// granted.
	Left    time.Duration
	Granted time.Duration // by etcd
	// Unknown: the leader has not counted yet when it ends.
	Unknown bool
	Term    uint64 // raft term that the member which answered knew
}

// longestTTL is the most that etcd grants, in seconds.
const longestTTL = 9_000_000_000

// LeaseLeft asks how long a lease still lasts, of anybody's, without renewing it. Where
// etcd authenticates, some versions ask for the right to read each key that is bound to the
// lease.
func (c *Client) LeaseLeft(ctx context.Context, id int64) (LeaseLeft, error) {
	answer, err := c.timeToLive(ctx, &etcdserverpb.LeaseTimeToLiveRequest{ID: id})
	if errors.Is(err, ErrLeaseNotFound) {
		return LeaseLeft{}, nil
	}
	if err != nil {
		return LeaseLeft{}, wrap(ctx, "read lease", err)
	}
	left := LeaseLeft{Found: answer.TTL >= 0, Unknown: answer.TTL > longestTTL, Term: answer.GetHeader().GetRaftTerm()}
	if left.Found && !left.Unknown {
		left.Left, left.Granted = seconds(answer.TTL), seconds(answer.GrantedTTL)
	}
	return left, nil
}
