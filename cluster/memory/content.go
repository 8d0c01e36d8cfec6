package memory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Content is what a server holds now, without its past: enough to go on from in another
// process. It shares nothing with the server.
type Content struct {
	Revision int64
	Keys     []KV    // sorted
	Leases   []Lease // by deadline, then by id; Keys of each is left out
	LastID   int64   // of the leases granted so far
}

// Content returns what the server holds. What is overdue ends first.
func (s *Server) Content() Content {
	s.enter()
	defer s.mu.Unlock()
	v := View{s}
	c := Content{Revision: v.Revision(), Keys: v.List(""), Leases: v.Leases(), LastID: s.lessor.lastID}
	for i := range c.Leases {
		c.Leases[i].Keys = nil
	}
	return c
}

// Restore makes a server that goes on from the content: an etcd that was restarted, but
// that its leases have the deadlines that they had, and that its past is compacted. It
// refuses content that no server can have.
func Restore(cfg Config, c Content) (*Server, error) {
	s := New(cfg)
	if c.Revision < 1 || c.LastID < s.lessor.lastID {
		return nil, errors.New("no server has such a revision, or has granted such leases")
	}
	s.store.revision, s.store.compacted, s.lessor.lastID = c.Revision, c.Revision, c.LastID
	for _, l := range c.Leases {
		if l.ID == 0 || l.TTL <= 0 || l.Deadline.IsZero() || s.lessor.known(l.ID) {
			return nil, fmt.Errorf("lease %x cannot be", l.ID)
		}
		s.lessor.leases[l.ID] = &lease{id: l.ID, ttl: l.TTL, deadline: l.Deadline, keys: map[string]bool{}}
	}
	s.lessor.findFirst()
	for _, kv := range c.Keys {
		switch {
		case kv.Key == "" || s.store.keys[kv.Key] != nil, kv.Lease != 0 && !s.lessor.known(kv.Lease),
			kv.Version < 1 || kv.CreateRevision < 1 || kv.ModRevision < kv.CreateRevision || kv.ModRevision > c.Revision:
			return nil, fmt.Errorf("key %q cannot be", kv.Key)
		}
		h := &history{key: kv.Key, versions: []KV{kv}}
		s.store.keys[kv.Key] = h
		s.store.order = append(s.store.order, h)
		s.lessor.bind(kv.Key, 0, kv.Lease)
	}
	slices.SortFunc(s.store.order, func(a, b *history) int { return strings.Compare(a.key, b.key) })
	return s, nil
}

// Rewind has the server go on from older content of its own, as an etcd does whose backup
// was restored: with the revision and the leases of then, each of them with its whole TTL,
// and in a raft term of its own. Watches end. The observer is told of all differences as
// one change, whose revision is that of the content.
func (s *Server) Rewind(c Content) error {
	older, err := Restore(s.cfg, c)
	if err != nil {
		return err
	}
	s.enter()
	defer s.mu.Unlock()
	var events []Event
	s.store.each(span{[]byte{0}, []byte{0}}, s.store.revision, func(kv *KV) bool {
		if _, stays := older.store.get([]byte(kv.Key)); !stays {
			events = append(events, Event{Deleted: true, KV: KV{Key: kv.Key, ModRevision: c.Revision}})
		}
		return true
	})
	for _, kv := range c.Keys {
		if now, there := s.store.get([]byte(kv.Key)); !there || now.ModRevision != kv.ModRevision {
			events = append(events, Event{KV: kv})
		}
	}
	moved, lastID := s.lessor.moved, s.lessor.lastID
	s.store, s.lessor = older.store, older.lessor
	s.lessor.lastID = lastID // an etcd's ids count with its clock
	s.lessor.refreshAll(s.cfg.Now(), 0)
	close(moved)
	s.term++
	s.endWatches(errReset)
	if s.observer != nil {
		s.observer(View{s}, Change{Revision: c.Revision, At: s.cfg.Now(), Cause: ByRestore, Events: events})
	}
	return nil
}

// Forget compacts the past once it is longer than most revisions, to half of that, so that
// a server that runs for ever does not grow.
func (s *Server) Forget(most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store.revision-max(s.store.compacted, 1) > most {
		s.store.compact(s.store.revision - most/2)
	}
}
