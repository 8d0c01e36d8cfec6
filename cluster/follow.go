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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	pageTimeout   = 5 * time.Second // for one page of a list
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

// Follow keeps the target current until ctx ends: first one full update, then changes. Each
// listEvery, and after a compaction or a cancelled watch, it lists again and delivers a full
// update again; it never delivers one because of an error. deliver is called from
// one goroutine, the caller's. onError, which may be nil, is told of each failure that
// differs from the one before. Follow returns the context's error, or ErrClosed.
func (c *Client) Follow(ctx context.Context, t Target, deliver func(Update), onError func(error)) error {
	return again(ctx, "follow "+t.Key, onError, func() (time.Duration, error) { return c.followOnce(ctx, t, deliver) })
}

// again repeats what reads and watches, with a growing pause when it fails, until ctx ends or
// the client is closed; see Follow. watched is for how long it watched. The pause starts over once
// that was longer than it can become: an etcd that takes each watch up, and ends it at once, is
// not listed again and again.
func again(ctx context.Context, what string, onError func(error), once func() (watched time.Duration, err error)) error {
	pause, told := followInitial, ""
	for {
		watched, err := once()
		if watched > followMax { // so a failure is a new one
			pause, told = followInitial, ""
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrClosed):
			return fmt.Errorf("%s: %w", what, err)
		case err == nil:
			continue
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

// followOnce lists, and watches until it is time to list again.
func (c *Client) followOnce(ctx context.Context, t Target, deliver func(Update)) (watched time.Duration, err error) {
	revision, err := c.list(ctx, t, deliver)
	if err != nil {
		return 0, fmt.Errorf("list: %w", err)
	}
	every, opts := listEvery, []clientv3.OpOption(nil)
	if t.InParts || t.Many {
		every = listPartsEvery
	}
	if t.Prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	return c.watch(ctx, every, t.Key, revision+1, deliver, opts...)
}

// watch delivers changes from the revision on until that time is over, which is no error, and
// says for how long it watched. The watch resumes by itself after a lost connection.
func (c *Client) watch(ctx context.Context, lasting time.Duration, key string, revision int64, deliver func(Update), opts ...clientv3.OpOption) (watched time.Duration, err error) {
	var created time.Time
	defer func() {
		if !created.IsZero() {
			watched = time.Since(created)
		}
	}()
	w, err := c.current()
	if err != nil {
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, jitter(lasting))
	defer cancel()
	watching, err := c.tokens.on(bounded, w)
	if err != nil {
		return 0, wrap(ctx, "watch", err)
	}
	for r := range w.watcher.Watch(watching, key, append(opts, clientv3.WithRev(revision), clientv3.WithCreatedNotify())...) {
		if err := r.Err(); err != nil {
			return 0, wrap(ctx, "watch", watchError(err))
		}
		if len(c.all) > 1 {
			if err := c.identity.check(r.Header.GetClusterId(), "the other end of a watch", time.Now()); err != nil {
				return 0, wrap(ctx, "watch", err)
			}
		}
		if r.Created && created.IsZero() {
			created = time.Now()
		}
		if len(r.Events) > 0 {
			deliver(collapse(r.Header.GetRevision(), r.Events))
		}
	}
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case bounded.Err() != nil && created.IsZero():
		return 0, errors.New("watch: etcd answers lists and opens no watch: what changes is seen with the next list")
	case bounded.Err() != nil:
		return 0, nil
	case c.isClosed():
		return 0, ErrClosed
	}
	return 0, wrap(ctx, "watch", errReplaced)
}

// errReplaced ends a watch on a connection that is not used any more.
var errReplaced = status.Error(codes.Unavailable, "another connection has replaced this one")

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

func (c *Client) page(ctx context.Context, get clientv3.Op) (*etcdserverpb.TxnResponse, error) {
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

// watchError turns the server's reason, which may be only text, into the value it stands for.
func watchError(reason error) error {
	var known rpctypes.EtcdError
	if errors.As(reason, &known) {
		return known
	}
	// Where etcd has a gRPC error for it, the text is that error's, code in front.
	text := reason.Error()
	if i := strings.LastIndex(text, " desc = "); i >= 0 && errors.As(rpctypes.Error(errors.New(text[i+len(" desc = "):])), &known) {
		return known
	}
	return fmt.Errorf("cancelled by etcd: %w", reason)
}

// collapse keeps the last event of each key. Events of one answer may span revisions; a
// header revision may lag behind them.
func collapse(revision int64, events []*clientv3.Event) Update {
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
		if e.Type == clientv3.EventTypeDelete {
			u.Deletes = append(u.Deletes, string(e.Kv.Key))
		} else {
			u.Puts = append(u.Puts, kvOf(e.Kv))
		}
	}
	return u
}
