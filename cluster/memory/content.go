package memory

// Content is what a server holds now, without its past. It shares nothing with the server.
type Content struct {
	Revision int64
	Keys     []KV    // sorted
	Leases   []Lease // by deadline, then by id; Keys of each is left out
}

// Content returns what the server holds. What is overdue ends first.
func (s *Server) Content() Content {
	s.enter()
	defer s.mu.Unlock()
	v := View{s}
	c := Content{Revision: v.Revision(), Keys: v.List(""), Leases: v.Leases()}
	for i := range c.Leases {
		c.Leases[i].Keys = nil
	}
	return c
}

// restore makes a server that has the content and no past.
func restore(cfg Config, c Content) *Server {
	s := New(cfg)
	s.store.revision, s.store.compacted = c.Revision, c.Revision
	for _, l := range c.Leases {
		s.lessor.leases[l.ID] = &lease{id: l.ID, ttl: l.TTL, deadline: l.Deadline, keys: map[string]bool{}}
	}
	s.lessor.findFirst()
	for _, kv := range c.Keys {
		h := &history{key: kv.Key, versions: []KV{kv}}
		s.store.keys[kv.Key] = h
		s.store.order = append(s.store.order, h)
		s.lessor.bind(kv.Key, 0, kv.Lease)
	}
	return s
}

// Rewind has the server go on from older content of its own, as an etcd does whose backup
// was restored: with the revision and the leases of then, each of them with its whole TTL,
// and in a raft term of its own. Watches end. The observer is told of all differences as
// one change, whose revision is that of the content.
func (s *Server) Rewind(c Content) {
	older := restore(s.cfg, c)
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
}
