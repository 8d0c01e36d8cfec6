package cluster

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Moves are the journals of all moves. They are long, and stay when a move is over.
func (k Keys) Moves() Target { return Target{Key: k.Move("/"), Prefix: true, InParts: true, Page: 100} }

// Move is the key of the journal of the topic's move.
func (k Keys) Move(topic string) string { return k.prefix + "/cluster/moves" + topic }

// ParseMove takes the topic out of a journal's key.
func (k Keys) ParseMove(key string) (topic string, ok bool) {
	return below(k.Move(""), key, checkTopic)
}

// JournalWrite is a new value of a move's journal, or of a drain's record. What else it says is done in
// the same transaction.
type JournalWrite struct {
	Key   string
	Value []byte
	Seen  int64 // mod revision of the journal that it follows; 0: there is none
	// From and To have the topic's assignment go from the one to the other, who must be
	// registered, if it is still of that mod revision. An ownership lock goes with it.
	From, To, Topic string
	Assigned        int64
	Locked          bool // the lock must be the writer's
}

// WriteJournal writes a journal and returns its new mod revision. who is the writer, whose
// registration guards it; nil: an operator, whose word no registration guards. ErrChanged says
// that something is not as seen, and that nothing was done.
func (c *Client) WriteJournal(ctx context.Context, who *Claimant, w JournalWrite) (revision int64, err error) {
	defer during(&err, "write %s", w.Key)
	guards := []clientv3.Cmp{written(w.Key, w.Seen)}
	if who != nil {
		guards = append(guards, c.claim(*who)...)
	}
	if w.To != "" {
		theirs := c.keys.Assignment(w.From, w.Topic)
		guards = append(guards, there(theirs), written(theirs, w.Assigned), there(c.keys.Registration(w.To)))
	}
	if w.To != "" && w.Locked && who != nil {
		guards = append(guards, under(c.keys.Owner(w.Topic), who.LeaseID))
	}
	_, revision, err = c.write(ctx, guards, c.journalOps(w)...)
	return revision, err
}

func (c *Client) journalOps(w JournalWrite) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpPut(w.Key, string(w.Value))}
	if w.To != "" {
		ops = append(ops, clientv3.OpDelete(c.keys.Assignment(w.From, w.Topic)), clientv3.OpPut(c.keys.Assignment(w.To, w.Topic), "null"),
			clientv3.OpDelete(c.keys.Owner(w.Topic)), clientv3.OpDelete(c.keys.Unassigned(w.Topic)))
	}
	return ops
}

// MayMove asks whether etcd lets our user write what a move writes and, with slots, what a drain of From
// writes. Nothing is written.
func (c *Client) MayMove(ctx context.Context, w JournalWrite, slots int) (err error) {
	defer during(&err, "ask for the rights to move %s", w.Topic)
	ops := c.journalOps(w)
	if slots > 0 {
		for _, key := range append(c.keys.drainLocks(slots), c.keys.Drain(w.From)) {
			ops = append(ops, clientv3.OpDelete(key))
		}
	}
	_, err = once(ctx, c.members, commit(nil, nil, ops...)) // nothing is compared: what else would be written is not
	return c.denied(ctx, err, nil, ops...)
}

// Journal reads the journal of a move, or the record of a drain; nil: there is none.
func (c *Client) Journal(ctx context.Context, key string) (journal *KV, err error) {
	defer during(&err, "read %s", key)
	journal, _, err = c.get(ctx, key)
	return journal, err
}

// Moves reads the journals of all moves.
func (c *Client) Moves(ctx context.Context, visit func(topic string, journal KV)) (err error) {
	defer during(&err, "read moves")
	_, err = c.scan(ctx, c.keys.Moves(), 0, func(kv KV) {
		if topic, ok := c.keys.ParseMove(kv.Key); ok {
			visit(topic, kv)
		}
	})
	return err
}

// Party reads what a broker is to a move: its registration, nil if it has none, and its mode,
// empty if it is not known.
func (c *Client) Party(ctx context.Context, id string) (reg *Registration, mode string, err error) {
	defer during(&err, "read registration and mode of %s", id)
	found, _, err := c.gets(ctx, []string{c.keys.Registration(id), c.keys.State(id)})
	if err != nil {
		return nil, "", err
	}
	if state, _ := stateOf(found[1]); state != nil {
		mode = state.Mode
	}
	return registrationOf(id, found[0]), mode, nil
}

// Drain is the key of the record of the broker's drain that moves its topics.
func (k Keys) Drain(id string) string { return k.prefix + "/cluster/drains/" + id }

// drainLocks are the keys that say, under leases, who drains now.
func (k Keys) drainLocks(slots int) []string {
	keys := []string{k.prefix + "/cluster/locks/drain"}
	for i := 1; i < slots; i++ {
		keys = append(keys, fmt.Sprintf("%s/%d", keys[0], i))
	}
	return keys
}

// LockDrain takes one of so many locks, under the broker's own lease, and says who has them if
// none is free. The broker's own is taken again.
func (c *Client) LockDrain(ctx context.Context, who Claimant, slots int) (holders []string, err error) {
	defer during(&err, "lock drain of %s", who.BrokerID)
	keys := c.keys.drainLocks(slots)
	found, _, err := c.gets(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, kv := range found {
		if kv != nil && kv.Lease == who.LeaseID {
			return nil, nil
		}
	}
	for i, kv := range found {
		if kv != nil {
			holders = append(holders, ownerOf("", kv).BrokerID)
			continue
		}
		_, _, err = c.write(ctx, append(c.claim(who), created(keys[i], 0)), putUnder(keys[i], who.lock(), who.LeaseID))
		return nil, err
	}
	return holders, nil
}

// Draining are the brokers that have one of so many locks.
func (c *Client) Draining(ctx context.Context, slots int) (brokers []string, err error) {
	defer during(&err, "read who drains")
	found, _, err := c.gets(ctx, c.keys.drainLocks(slots))
	for _, kv := range found {
		if kv != nil {
			brokers = append(brokers, ownerOf("", kv).BrokerID)
		}
	}
	return brokers, err
}

// UnlockDrain gives the broker's lock back.
func (c *Client) UnlockDrain(ctx context.Context, who Claimant, slots int) (err error) {
	defer during(&err, "unlock drain of %s", who.BrokerID)
	for _, key := range c.keys.drainLocks(slots) {
		if _, _, err = c.write(ctx, []clientv3.Cmp{under(key, who.LeaseID)}, clientv3.OpDelete(key)); err != nil && !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return nil
}
