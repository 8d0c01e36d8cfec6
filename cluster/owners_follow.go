package cluster

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watchesPerStream is up to how many locks are watched one by one. Above, the deletions
// of all locks are followed: as long as somebody waits for many, that costs less.
const watchesPerStream = 64

// FollowFree tells of each of the topics whose lock is free or becomes free, as often as
// it does, until ctx ends. It reads the locks first, so none that goes in between is
// missed, and again after every failure; deletions alone are watched. free is called from
// the caller's goroutine, onError as in Follow. It returns the context's error, or
// ErrClosed.
func (c *Client) FollowFree(ctx context.Context, topics []string, free func(topics []string), onError func(error)) error {
	return again(ctx, fmt.Sprintf("follow owners of %d topics", len(topics)), onError,
		func() (bool, error) { return c.followFreeOnce(ctx, topics, free) })
}

// followFreeOnce reads and watches until something fails; the error is never nil.
func (c *Client) followFreeOnce(ctx context.Context, topics []string, free func([]string)) (watching bool, err error) {
	if len(topics) == 0 {
		<-ctx.Done()
		return false, ctx.Err()
	}
	owners, revision, err := c.ownersInTime(ctx, topics)
	if err != nil {
		return false, err
	}
	var gone []string
	for _, topic := range topics {
		if owners[topic].Free() {
			gone = append(gone, topic)
		}
	}
	if len(gone) > 0 {
		free(gone)
	}
	watching, err = c.watchAll(ctx, c.freeWatches(topics, revision+1), func(u Update) {
		var gone []string
		for _, key := range u.Deletes {
			topic, ok := c.keys.ParseOwner(key)
			if _, ours := owners[topic]; ok && ours {
				gone = append(gone, topic)
			}
		}
		if len(gone) > 0 {
			free(gone)
		}
	})
	return watching, wrap(ctx, "watch", err)
}

// ownersInTime bounds the read by the time of a page for every hundred topics.
func (c *Client) ownersInTime(ctx context.Context, topics []string) (map[string]Owner, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout*time.Duration(1+len(topics)/opsPerTxn))
	defer cancel()
	return c.owners(ctx, topics)
}

func (c *Client) freeWatches(topics []string, revision int64) []*etcdserverpb.WatchCreateRequest {
	deletions := []etcdserverpb.WatchCreateRequest_FilterType{etcdserverpb.WatchCreateRequest_NOPUT}
	if len(topics) > watchesPerStream {
		all := c.keys.Owners()
		return []*etcdserverpb.WatchCreateRequest{{Key: []byte(all), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(all)),
			StartRevision: revision, Filters: deletions}}
	}
	creates := make([]*etcdserverpb.WatchCreateRequest, len(topics))
	for i, topic := range topics {
		creates[i] = &etcdserverpb.WatchCreateRequest{Key: []byte(c.keys.Owner(topic)), StartRevision: revision, Filters: deletions}
	}
	return creates
}
