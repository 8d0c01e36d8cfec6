package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Every registration writes the era into its key and into its member record in one
// transaction, so the highest era of all member records is the era, whatever became of the key.
// Somebody may have deleted it: counted from nothing it would be behind what brokers remember,
// and each of them would take a restart of the whole cluster for its own death. Or it cannot be
// read: a whole fleet reads it, and none of it need wait for a person.
//
// A key that cannot be read stays as it is while somebody is registered: a newer version may have
// written it, and a person is to see it. Only an era that begins puts its own in the place,
// and a person may delete it at any time.

const (
	// recordFormat is the newest format of an era and of a member record that is understood
	// here. None is written: a value without one is of the first.
	recordFormat = 1
	// mostEra bounds what is taken for an era: no cluster restarts as often.
	mostEra = 1 << 53
)

// eraIn is the number of an era or of a member record; ok: it has one, of a format that is
// understood here. What else it holds is borne.
func eraIn(value []byte) (n int64, ok bool) {
	var v struct {
		Era    *int64 `json:"era"`
		Format int    `json:"format"`
	}
	if json.Unmarshal(value, &v) != nil || v.Era == nil || *v.Era < 0 || *v.Era > mostEra || v.Format > recordFormat {
		return 0, false
	}
	return *v.Era, true
}

// eraOf reads the key of the era. counted: it says which that is, whatever else cannot be read.
func eraOf(kv *mvccpb.KeyValue) (era Era, counted bool) {
	era.ModRevision = kv.ModRevision
	var v eraValue
	if era.N, counted = eraIn(kv.Value); counted && json.Unmarshal(kv.Value, &v) == nil {
		era.Alive = Alive{v.AliveUntil, v.AliveRevision}
	} else {
		era.Unread = fmt.Sprintf("%q at key %s", excerpt(kv.Value), kv.Key)
	}
	return era, counted
}

// recallEra finds out an era that its key does not tell. A broker that stands by its
// registration knows it: while it is registered no other begins. Who waits does not ask. Else
// it costs a look at each member record.
func (c *Client) recallEra(ctx context.Context, s *Snapshot, waits bool) error {
	if s.Member != nil {
		s.Era.N = s.Member.Era
	}
	switch {
	case s.Registration == nil && waits:
		s.eraUnasked = true
		return nil
	case s.Registration != nil && s.Member != nil && s.Member.ModRevision >= s.Registration.CreateRevision:
		return nil
	}
	unsure := ""
	_, err := c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, s.Revision, func(kv KV) {
		m, malformed := memberOf(kv.raw())
		if m == nil {
			unsure = cmp.Or(unsure, fmt.Sprintf("%q at key %s", malformed, kv.Key))
			return
		}
		s.Era.N = max(s.Era.N, m.Era)
	})
	if Denied(err) {
		unsure, err = "etcd does not show member records: grant this user read on "+c.keys.Members(), nil
	}
	if s.Era.Unread != "" {
		s.EraUnsure = unsure
	}
	return err
}

// eraAfter is the era that a registration is in, and whether its key is to be written.
func (req RegisterRequest) eraAfter() (era eraValue, written bool) {
	seen, begins := req.Seen.Era, !req.Seen.AnyRegistered
	era.Era = seen.N
	if begins {
		era.Era++
	}
	alive := seen.Alive
	if req.Alive != nil {
		alive = *req.Alive
	}
	era.AliveUntil, era.AliveRevision = alive.Until.UTC(), alive.Revision
	lost := seen.ModRevision == 0 && era.Era > 0
	return era, begins || lost || req.Alive != nil && seen.Unread == ""
}
