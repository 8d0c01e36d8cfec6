package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	pageTimeout   = 5 * time.Second // for one page of a list, and for a watch to begin
	followInitial = 100 * time.Millisecond
	followMax     = 2 * time.Second
)

// Target is what to read or follow.
type Target struct {
	Key      string
	Prefix   bool // everything that begins with Key
	KeysOnly bool // leave Value empty in what is listed; changes carry it anyway
	// InParts has a full update come page by page, for a target that may have very many keys.
	InParts bool
}

// KV is one key as read.
type KV struct {
	Key            string
	Value          []byte
	Lease          int64
	CreateRevision int64
	ModRevision    int64
}

func (kv KV) raw() *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}

func kvOf(kv *mvccpb.KeyValue) KV {
	return KV{
		Key: string(kv.Key), Value: kv.Value, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
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

// Follow keeps the target current until ctx ends: first one full update, then changes.
// After a compaction, a cancelled watch or a lost connection it lists again and delivers
// a full update again; it never delivers one because of an error. deliver is called from
// one goroutine, the caller's. onError, which may be nil, is told of each failure that
// differs from the one before. Follow returns the context's error, or ErrClosed.
func (c *Client) Follow(ctx context.Context, t Target, deliver func(Update), onError func(error)) error {
	return again(ctx, "follow "+t.Key, onError, func() (bool, error) { return c.followOnce(ctx, t, deliver) })
}

// again repeats what reads and watches until it fails, with a growing pause, until ctx
// ends or the client is closed; see Follow. watching says that the watch had begun. The pause
// starts over once reading and watching have lasted for longer than it can become: an etcd that
// takes each watch up, and ends it at once, is not listed again and again.
func again(ctx context.Context, what string, onError func(error), once func() (watching bool, err error)) error {
	pause, told := followInitial, ""
	for {
		began := time.Now()
		watching, err := once()
		if watching { // so this failure is a new one
			told = ""
		}
		if watching && time.Since(began) > followMax {
			pause = followInitial
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("%s: %w", what, err)
		}
		if onError != nil && err.Error() != told {
			told = err.Error()
			onError(fmt.Errorf("%s: %w", what, err))
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		case <-wait.C:
		}
		pause = min(2*pause, followMax)
	}
}

// followOnce lists and watches until something fails; the error is never nil. watching
// says that the watch had begun by then.
func (c *Client) followOnce(ctx context.Context, t Target, deliver func(Update)) (watching bool, err error) {
	revision, err := c.list(ctx, t, deliver)
	if err != nil {
		return false, fmt.Errorf("list: %w", err)
	}
	watching, err = c.watchFrom(ctx, t, revision+1, deliver)
	return watching, wrap(ctx, "watch", err)
}

// list delivers the whole content, and returns its revision.
func (c *Client) list(ctx context.Context, t Target, deliver func(Update)) (int64, error) {
	u := Update{Full: true}
	return c.pages(ctx, t, 0, func(revision int64, page []KV, more bool) {
		u.Puts = append(u.Puts, page...)
		if u.Revision, u.More = revision, more; t.InParts || !more {
			deliver(u)
			u = Update{}
		}
	})
}

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
	from, end := t.Key, ""
	if t.Prefix {
		end = clientv3.GetPrefixRangeEnd(t.Key)
	}
	for {
		opts := []clientv3.OpOption{clientv3.WithLimit(keysPerPage), clientv3.WithRev(revision)}
		if end != "" {
			opts = append(opts, clientv3.WithRange(end))
		}
		if t.KeysOnly {
			opts = append(opts, clientv3.WithKeysOnly())
		}
		answer, err := c.page(ctx, clientv3.OpGet(from, opts...))
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = answer.Header.Revision
		}
		found := answer.Responses[0].GetResponseRange()
		more := found.GetMore() && len(found.GetKvs()) > 0
		page := make([]KV, len(found.GetKvs()))
		for i, kv := range found.GetKvs() {
			page[i] = kvOf(kv)
		}
		if visit(revision, page, more); !more {
			return revision, nil
		}
		from = string(found.Kvs[len(found.Kvs)-1].Key) + "\x00"
	}
}

func (c *Client) page(ctx context.Context, get clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	answer, err := c.read(ctx, get)
	if err != nil {
		return nil, err
	}
	if len(answer.Responses) != 1 {
		return nil, fmt.Errorf("etcd answered %d of 1 get", len(answer.Responses))
	}
	return answer, nil
}

// watchFrom delivers changes of the target from the revision on until the watch ends.
func (c *Client) watchFrom(ctx context.Context, t Target, revision int64, deliver func(Update)) (watching bool, err error) {
	create := &etcdserverpb.WatchCreateRequest{Key: []byte(t.Key), StartRevision: revision}
	if t.Prefix {
		create.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(t.Key))
	}
	return c.watchAll(ctx, []*etcdserverpb.WatchCreateRequest{create}, deliver)
}

// watchAll delivers the changes of several watches until one of them ends; the error is
// never nil. watching says that etcd had taken all of them up. It does not resume by itself
// as the etcd client's watcher does: that one hides how long it has been blind.
func (c *Client) watchAll(ctx context.Context, creates []*etcdserverpb.WatchCreateRequest, deliver func(Update)) (watching bool, err error) {
	w := c.watches.join(creates)
	defer c.watches.leave(w)
	begin := time.NewTimer(pageTimeout)
	defer begin.Stop()
	for {
		select {
		case <-ctx.Done():
			return watching, ctx.Err()
		case <-begin.C:
			c.watches.abandon(w.stream)
		case <-w.more:
		}
		updates, taken, err := c.watches.take(w)
		if taken && !watching {
			begin.Stop()
			watching = true
		}
		for _, u := range updates {
			deliver(u)
		}
		if err != nil {
			return watching, err
		}
	}
}

// canceledWatch turns the server's reason, which is only text, into the value it stands for.
func canceledWatch(reason string) error {
	if reason == "" {
		return errors.New("cancelled by etcd")
	}
	// Where etcd has a gRPC error for it, the text is that error's, code in front.
	if _, after, ok := strings.Cut(reason, " desc = "); ok {
		reason = after
	}
	err := rpctypes.Error(errors.New(reason))
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known
	}
	return fmt.Errorf("cancelled by etcd: %s", reason)
}

// collapse keeps the last event of each key. Events of one answer may span revisions; a
// header revision may lag behind them.
func collapse(revision int64, events []*mvccpb.Event) Update {
	u := Update{Revision: revision}
	last := make(map[string]int, len(events))
	for i, e := range events {
		last[string(e.Kv.Key)] = i
		u.Revision = max(u.Revision, e.Kv.ModRevision)
	}
	for i, e := range events {
		if last[string(e.Kv.Key)] != i {
			continue
		}
		if e.Type == mvccpb.Event_DELETE {
			u.Deletes = append(u.Deletes, string(e.Kv.Key))
		} else {
			u.Puts = append(u.Puts, kvOf(e.Kv))
		}
	}
	return u
}
