package cluster

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// FollowFree tells of each of the topics whose lock is free or becomes free, as often as
// it does, until ctx ends. It reads the locks first, so none that goes in between is
// missed, and again as Follow does; deletions alone are watched, of what lies between the first
// and the last of the locks. free is called from the caller's goroutine, onError as in Follow.
// It returns the context's error, or ErrClosed.
func (c *Client) FollowFree(ctx context.Context, topics []string, free func(topics []string), onError func(error)) error {
	if len(topics) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	first, last, topicOf := "", "", make(map[string]string, len(topics))
	for _, topic := range topics {
		key := c.keys.Owner(topic)
		if first == "" || key < first {
			first = key
		}
		last, topicOf[key] = max(last, key), topic
	}
	return again(ctx, fmt.Sprintf("follow owners of %d topics", len(topics)), onError, func() (time.Duration, error) {
		revision, err := c.tellFree(ctx, topics, free)
		if err != nil {
			return 0, err
		}
		return c.watch(ctx, listEvery, first, revision+1, func(u Update) {
			var gone []string
			for _, key := range u.Deletes {
				if topic, ours := topicOf[key]; ours {
					gone = append(gone, topic)
				}
			}
			if len(gone) > 0 {
				free(gone)
			}
		}, clientv3.WithRange(last+"\x00"), clientv3.WithFilterPut())
	})
}

// tellFree reads the locks, in the time of a page for every hundred.
func (c *Client) tellFree(ctx context.Context, topics []string, free func([]string)) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout*time.Duration(1+len(topics)/opsPerTxn))
	defer cancel()
	owners, revision, err := c.owners(ctx, topics)
	if err != nil {
		return 0, err
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
	return revision, nil
}
