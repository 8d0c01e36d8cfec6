package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// getsPerTxn is what etcd takes by default.
	getsPerTxn = 128
	// nestedPerTxn is how many topics one transaction decides on, each in a transaction nested in
	// it: etcd counts the operations of each level against what the levels above have left of its
	// 128.
	nestedPerTxn = 100
	// readTimeout bounds what is read in one transaction, such as a page of a list.
	readTimeout = 5 * time.Second
)

// KV is one key as read.
type KV struct {
	Key            string
	Value          []byte
	Lease          int64
	CreateRevision int64
	ModRevision    int64
}

func kvOf(kv *mvccpb.KeyValue) KV {
	return KV{string(kv.Key), kv.Value, kv.Lease, kv.CreateRevision, kv.ModRevision}
}

// revision is the key's mod revision; 0: it is absent.
func (kv *KV) revision() int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}

// created guards a key by its create revision, written by its mod revision; 0: it is absent.
func created(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

func written(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// there guards that a key is: an absent one has mod revision 0, and so might a caller's empty
// view of it.
func there(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
}

func under(key string, lease int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.LeaseValue(key), "=", lease)
}

func commit(guards []clientv3.Cmp, ops []clientv3.Op, orElse ...clientv3.Op) question[*etcdserverpb.TxnResponse] {
	return func(ctx context.Context, w *way) (*etcdserverpb.TxnResponse, error) {
		said, err := w.kv.Txn(ctx).If(guards...).Then(ops...).Else(orElse...).Commit()
		if err == nil && (said.Succeeded || len(guards) == 0) && len(said.Responses) != len(ops) {
			err = fmt.Errorf("etcd answered %d of %d", len(said.Responses), len(ops))
		}
		return (*etcdserverpb.TxnResponse)(said), err
	}
}

// read runs gets in one transaction, so at one revision, and returns what each has found.
func (c *Client) read(ctx context.Context, gets ...clientv3.Op) (found [][]KV, head *etcdserverpb.ResponseHeader, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answer, err := ask(ctx, c.members, commit(nil, gets))
	if err = c.denied(ctx, err, nil, gets...); err != nil {
		return nil, nil, err
	}
	for _, r := range answer.Responses {
		found = append(found, kvsOf(r))
	}
	return found, answer.Header, nil
}

// kvsOf are the keys that a get has found.
func kvsOf(answer *etcdserverpb.ResponseOp) (kvs []KV) {
	for _, kv := range answer.GetResponseRange().GetKvs() {
		kvs = append(kvs, kvOf(kv))
	}
	return kvs
}

// gets asks for single keys and returns what there is in their order, nil for what there is not.
// Each getsPerTxn are read at one revision; the header is that of the first.
func (c *Client) gets(ctx context.Context, keys []string, opts ...clientv3.OpOption) (found []*KV, head *etcdserverpb.ResponseHeader, err error) {
	for batch := range slices.Chunk(keys, getsPerTxn) {
		ops := make([]clientv3.Op, len(batch))
		for i, key := range batch {
			ops[i] = clientv3.OpGet(key, opts...)
		}
		some, said, err := c.read(ctx, ops...)
		if err != nil {
			return nil, nil, err
		}
		if head == nil {
			head = said
		}
		for _, kvs := range some {
			found = append(found, first(kvs))
		}
	}
	return found, head, nil
}

func first(kvs []KV) *KV {
	if len(kvs) == 0 {
		return nil
	}
	return &kvs[0]
}

// get asks for one key; nil: it is absent.
func (c *Client) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*KV, *etcdserverpb.ResponseHeader, error) {
	answer, err := ask(ctx, c.members, func(ctx context.Context, w *way) (*etcdserverpb.RangeResponse, error) {
		said, err := w.kv.Get(ctx, key, opts...)
		return (*etcdserverpb.RangeResponse)(said), err
	})
	if err = c.denied(ctx, err, nil, clientv3.OpGet(key)); err != nil || len(answer.Kvs) == 0 {
		return nil, answer.GetHeader(), err
	}
	kv := kvOf(answer.Kvs[0])
	return &kv, answer.Header, nil
}

// write commits one guarded transaction, once: whether a write whose answer was lost
// happened is for the caller to find out. It returns the revision, too.
func (c *Client) write(ctx context.Context, guards []clientv3.Cmp, ops ...clientv3.Op) (*etcdserverpb.TxnResponse, int64, error) {
	answer, err := once(ctx, c.members, commit(guards, ops))
	if err == nil && !answer.Succeeded {
		err = ErrChanged
	}
	return answer, answer.GetHeader().GetRevision(), c.denied(ctx, err, guards, ops...)
}

// topicAct is what is done about one topic, in a transaction of its own.
type topicAct struct {
	topic string
	txn   clientv3.Op
}

func actOn(topic string, guards []clientv3.Cmp, then []clientv3.Op, orElse ...clientv3.Op) topicAct {
	return topicAct{topic, clientv3.OpTxn(guards, then, orElse)}
}

// eachTopic decides on topics, each by itself, under guards for all. With an error, done was called
// for those before it.
func (c *Client) eachTopic(ctx context.Context, guards []clientv3.Cmp, acts []topicAct, done func(i int, answer *etcdserverpb.TxnResponse)) error {
	i := 0
	for batch := range slices.Chunk(acts, nestedPerTxn) {
		ops := make([]clientv3.Op, len(batch))
		for k, act := range batch {
			if err := checkTopic(act.topic); err != nil {
				return err
			}
			ops[k] = act.txn
		}
		answer, _, err := c.write(ctx, guards, ops...)
		if err != nil {
			return err
		}
		for _, response := range answer.Responses {
			done(i, response.GetResponseTxn())
			i++
		}
	}
	return nil
}

// putJSON puts a value of ours. Before the year 10000 all of them can be encoded.
func putJSON(key string, value any) clientv3.Op {
	encoded, _ := json.Marshal(value)
	return clientv3.OpPut(key, string(encoded))
}

// putUnder puts a value under a lease.
func putUnder(key, value string, lease int64, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpPut(key, value, append(opts, clientv3.WithLease(clientv3.LeaseID(lease)))...)
}

// during puts what was tried in front of an error. It is deferred.
func during(err *error, what string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(what+": %w", append(args, *err)...)
	}
}
