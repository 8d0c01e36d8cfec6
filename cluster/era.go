package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"time"
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

// Era counts the times that somebody registered when nobody was registered, and says until when
// somebody had been before.
type Era struct {
	N           int64 // at least what the broker remembers; where the key does not say, what any does
	ModRevision int64 // 0: the key is absent
	Alive       Alive // the fleet before this era
	// Unread says what stands there that cannot be read, and at which key; empty: nothing.
	// Then Alive is not known, and N may not be from the key.
	Unread string
}

// Alive says until when a fleet was alive: the last confirmed renewal of one of its brokers.
type Alive struct {
	Until    time.Time `json:"alive_until,omitzero"`     // by that broker's clock; zero: not known
	Revision int64     `json:"alive_revision,omitempty"` // of the store then; 0: not known
}

type eraValue struct {
	Era int64 `json:"era"`
	Alive
}

// mostEra bounds what is taken for an era: no cluster restarts as often.
const mostEra = 1 << 53

// eraIn is the number of an era or of a member record; ok: it has one, of a format that is
// understood here. What else it holds is borne.
func eraIn(value []byte) (n int64, ok bool) {
	var v struct{ Era *int64 }
	if !readable(value, &v) || v.Era == nil || *v.Era < 0 || *v.Era > mostEra {
		return 0, false
	}
	return *v.Era, true
}

// eraOf reads the key of the era. counted: it says which that is, whatever else cannot be read.
func eraOf(kv *KV) (era Era, counted bool) {
	if kv == nil {
		return era, false
	}
	era.ModRevision = kv.ModRevision
	var v eraValue
	if era.N, counted = eraIn(kv.Value); counted && json.Unmarshal(kv.Value, &v) == nil {
		era.Alive = v.Alive
	} else {
		era.Unread = at(excerpt(kv.Value), kv.Key)
	}
	return era, counted
}

// recallEra finds out an era that its key does not tell. A broker that stands by its
// registration knows it: while it is registered no other begins. Else it costs a look at each
// member record.
func (c *Client) recallEra(ctx context.Context, s *Snapshot) error {
	if s.Registration != nil && s.Member != nil && s.Member.ModRevision >= s.Registration.CreateRevision {
		return nil
	}
	unsure := ""
	_, err := c.scan(ctx, Target{Key: c.keys.Members(), Prefix: true}, s.Revision, func(kv KV) {
		if m, malformed := memberOf(&kv); m != nil {
			s.Era.N = max(s.Era.N, m.Era)
		} else {
			unsure = cmp.Or(unsure, at(malformed, kv.Key))
		}
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
	era.Era, era.Alive = seen.N, seen.Alive
	if begins {
		era.Era++
	}
	if req.Alive != nil {
		era.Alive = *req.Alive
	}
	era.Until = era.Until.UTC()
	lost := seen.ModRevision == 0 && era.Era > 0
	return era, begins || lost || req.Alive != nil && seen.Unread == ""
}
