package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	keysPerPage   = 1000
	followInitial = 100 * time.Millisecond
	followMax     = 2 * time.Second
	// listEvery is how long a watch is believed: then what it is of is listed again. So one that
	// has died without a word costs that time, whatever it died of.
	listEvery = 30 * time.Second
	// listPartsEvery is the same for what may be very many keys.
	listPartsEvery = 5 * time.Minute
)

// Target is what to read or follow.
type Target struct {
	Key      string
	Prefix   bool // everything that begins with Key
	KeysOnly bool // leave Value empty in what is listed; changes carry it anyway
	// InParts has a full update come page by page, for a target that may have very many keys.
	InParts bool
	// Many says that there may be very many keys: they are listed again less often.
	Many bool
	// Page is how many keys are read at a time; 0: keysPerPage.
	Page int
}

// Update is a step in the life of a target. Revision is the store's revision up to which
// the target is known.
type Update struct {
	// Full says that Puts is the whole content, and that what is not in it is not there.
	Full bool
	// More says that the content goes on in the next update. If that is full, then the list
	// has failed meanwhile, and begins anew.
	More     bool
	Revision int64
	// Puts and Deletes hold each key at most once, as it was at Revision.
	Puts    []KV
	Deletes []string
}

// PutKeys are the keys of Puts.
func (u Update) PutKeys() []string {
	keys := make([]string, len(u.Puts))
	for i, kv := range u.Puts {
		keys[i] = kv.Key
	}
	return keys
}

// Follow keeps the target current until ctx ends: first one full update, then changes. Each
// listEvery, and after a compaction or a cancelled watch, it lists again and delivers a full
// update again; it never delivers one because of an error. deliver is called from
// one goroutine, the caller's. onError, which may be nil, is told of each failure that
// differs from the one before, but not that we are not let in at all: whatever else is asked says
// that. Follow returns the context's error, or ErrClosed.
func (c *Client) Follow(ctx context.Context, t Target, deliver func(Update), onError func(error)) error {
	every, opts := listEvery, []clientv3.OpOption(nil)
	if t.InParts || t.Many {
		every = listPartsEvery
	}
	if t.Prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	return again(ctx, "follow "+t.Key, onError, func(begun *time.Time) error {
		u := Update{Full: true}
		revision, err := c.pages(ctx, t, 0, func(revision int64, page []KV, more bool) {
			u.Puts = append(u.Puts, page...)
			if u.Revision, u.More = revision, more; t.InParts || !more {
				deliver(u)
				u = Update{}
			}
		})
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		return c.watch(ctx, begun, every, t.Key, revision+1, deliver, opts...)
	})
}

// again repeats what reads and watches, with a growing pause when it fails, until ctx ends or
// the client is closed; see Follow. begun is when it began to watch. The pause starts over once it
// watched for longer than that can become: an etcd that takes each watch up, and ends it at once, is
// not listed again and again.
func again(ctx context.Context, what string, onError func(error), once func(begun *time.Time) error) error {
	pause, told := followInitial, ""
	for ctx.Err() == nil {
		var begun time.Time
		err := once(&begun)
		if !begun.IsZero() && time.Since(begun) > followMax { // so a failure is a new one
			pause, told = followInitial, ""
		}
		switch {
		case err == nil || ctx.Err() != nil:
			continue
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("%s: %w", what, err)
		}
		if onError != nil && err.Error() != told {
			told = err.Error()
			if Classify(err) != ClassAuth || Denied(err) {
				onError(fmt.Errorf("%s: %w", what, err))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
		pause = min(2*pause, followMax)
	}
	return ctx.Err()
}

// watch delivers changes from the revision on until that time is over, which is no error, and
// says when it began. A fleet that began at once is spread. The watch resumes by itself after a lost connection.
func (c *Client) watch(ctx context.Context, begun *time.Time, lasting time.Duration, key string, revision int64, deliver func(Update), opts ...clientv3.OpOption) (err error) {
	defer during(&err, "watch")
	w, err := c.current()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, lasting-rand.N(lasting/5))
	defer cancel()
	watching, _, err := c.tokens.on(bounded, w)
	if err != nil {
		return cause(ctx, err)
	}
	for r := range w.library.Watch(watching, key, append(opts, clientv3.WithRev(revision), clientv3.WithCreatedNotify())...) {
		if err := r.Err(); err != nil {
			return c.denied(ctx, cause(ctx, reason(err)), nil, clientv3.OpGet(key, opts...))
		}
		if len(c.all) > 1 {
			if err := c.identity.check(r.Header.GetClusterId(), "the other end of a watch", time.Now()); err != nil {
				return err
			}
		}
		if r.Created && begun.IsZero() {
			*begun = time.Now()
		}
		if len(r.Events) > 0 {
			deliver(collapse(r.Events))
		}
	}
	switch {
	case bounded.Err() != nil && begun.IsZero():
		return errors.New("etcd answers lists and opens no watch: what changes is seen with the next list")
	case bounded.Err() != nil:
		return nil
	}
	if _, err := c.current(); err != nil { // closed
		return err
	}
	return errReplaced
}

// errReplaced ends a watch on a connection that is not used any more.
var errReplaced = status.Error(codes.Unavailable, "another connection has replaced this one")

// scan reads the target at one revision, which it returns; 0 means the newest. visit may
// have been called when it returns an error.
func (c *Client) scan(ctx context.Context, t Target, revision int64, visit func(KV)) (int64, error) {
	return c.pages(ctx, t, revision, func(_ int64, page []KV, _ bool) {
		for _, kv := range page {
			visit(kv)
		}
	})
}

// pages reads as scan does. There is at least one page.
func (c *Client) pages(ctx context.Context, t Target, revision int64, visit func(revision int64, page []KV, more bool)) (int64, error) {
	var opts []clientv3.OpOption
	if t.Prefix {
		opts = append(opts, clientv3.WithRange(clientv3.GetPrefixRangeEnd(t.Key)))
	}
	if t.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	limit := cmp.Or(t.Page, keysPerPage)
	for from := t.Key; ; {
		get := clientv3.OpGet(from, append(opts, clientv3.WithLimit(int64(limit)), clientv3.WithRev(revision))...)
		found, head, err := c.read(ctx, get)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = head.Revision
		}
		page := found[0]
		more := len(page) == limit
		if visit(revision, page, more); !more {
			return revision, nil
		}
		from = page[len(page)-1].Key + "\x00"
	}
}

// collapse keeps the last event of each key. The header of an answer says nothing of how far the watch
// has told: one that catches up tells part by part, each under the revision of the store.
func collapse(events []*clientv3.Event) Update {
	u, last := Update{}, map[string]*clientv3.Event{}
	for _, e := range events {
		last[string(e.Kv.Key)] = e
		u.Revision = max(u.Revision, e.Kv.ModRevision)
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if e := last[key]; e.Type == clientv3.EventTypeDelete {
			u.Deletes = append(u.Deletes, key)
		} else {
			u.Puts = append(u.Puts, kvOf(e.Kv))
		}
	}
	return u
}
