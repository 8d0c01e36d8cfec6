package memory

import (
	"slices"
	"sort"
	"strings"
)

// KV is one key at one revision.
type KV struct {
	Key, Value                           string
	Lease                                int64 // 0: bound to no lease
	CreateRevision, ModRevision, Version int64 // a version of 0 is a deleted key
}

// Event is one change of one key. A deletion has only Key and ModRevision in KV. Prev is
// what was there before the transaction; nil: nothing.
type Event struct {
	Deleted bool
	KV      KV
	Prev    *KV
}

// history is one key's versions, oldest first.
type history struct {
	key      string
	versions []KV
}

// at returns the key as it was at the revision.
func (h *history) at(revision int64) (*KV, bool) {
	for i := len(h.versions) - 1; i >= 0; i-- {
		if v := &h.versions[i]; v.ModRevision <= revision {
			return v, v.Version > 0
		}
	}
	return nil, false
}

// store holds the keys of all revisions since the last compaction. It knows neither time
// nor leases, and locks nothing.
type store struct {
	revision  int64
	compacted int64 // reads and watches below it are refused; -1: none
	keys      map[string]*history
	order     []*history // by key
	log       [][]Event  // by revision; the last one is of revision
	pending   []Event    // of the transaction under way, which writes revision+1
}

func newStore() store {
	return store{revision: 1, compacted: -1, keys: map[string]*history{}}
}

// reading is the revision that a read sees: the transaction's own writes too.
func (s *store) reading() int64 {
	if len(s.pending) > 0 {
		return s.revision + 1
	}
	return s.revision
}

// get returns the key as it is now.
func (s *store) get(key []byte) (*KV, bool) {
	if h := s.keys[string(key)]; h != nil {
		return h.at(s.reading())
	}
	return nil, false
}

// span is a range of keys as etcd writes it: one key without an end, all from key on if
// the end is "\x00".
type span struct{ key, end []byte }

func (sp span) contains(key string) bool {
	switch {
	case len(sp.end) == 0:
		return key == string(sp.key)
	case len(sp.end) == 1 && sp.end[0] == 0:
		return key >= string(sp.key)
	}
	return key >= string(sp.key) && key < string(sp.end)
}

// each visits what the span holds at the revision, by key, until visit returns false.
// Visitors must not write.
func (s *store) each(sp span, revision int64, visit func(*KV) bool) {
	if len(sp.end) == 0 {
		if h := s.keys[string(sp.key)]; h != nil {
			if kv, ok := h.at(revision); ok {
				visit(kv)
			}
		}
		return
	}
	from := sort.Search(len(s.order), func(i int) bool { return s.order[i].key >= string(sp.key) })
	for _, h := range s.order[from:] {
		if !sp.contains(h.key) {
			return
		}
		if kv, ok := h.at(revision); ok && !visit(kv) {
			return
		}
	}
}

// put writes one version of the key in the transaction under way and returns what was
// there just before.
func (s *store) put(key, value string, lease int64) (before *KV) {
	h := s.keys[key]
	if h == nil {
		h = &history{key: key}
		s.keys[key] = h
		at, _ := slices.BinarySearchFunc(s.order, key, func(h *history, key string) int { return strings.Compare(h.key, key) })
		s.order = slices.Insert(s.order, at, h)
	}
	kv := KV{Key: key, Value: value, Lease: lease, CreateRevision: s.revision + 1, ModRevision: s.revision + 1, Version: 1}
	if last, ok := h.at(s.revision + 1); ok {
		before = last // versions never change, so neither does this
		kv.CreateRevision, kv.Version = last.CreateRevision, last.Version+1
	}
	s.pend(h, Event{KV: kv})
	h.versions = append(h.versions, kv)
	return before
}

// remove deletes the key, which must be there, in the transaction under way and returns
// what was there just before.
func (s *store) remove(key string) (before *KV) {
	h := s.keys[key]
	before, _ = h.at(s.revision + 1)
	gone := KV{Key: key, ModRevision: s.revision + 1}
	s.pend(h, Event{Deleted: true, KV: gone})
	h.versions = append(h.versions, gone)
	return before
}

func (s *store) pend(h *history, e Event) {
	if prev, ok := h.at(s.revision); ok {
		e.Prev = prev
	}
	s.pending = append(s.pending, e)
}

// commit ends the transaction under way and returns what it changed.
func (s *store) commit() []Event {
	events := s.pending
	if len(events) > 0 {
		s.pending = nil
		s.revision++
		s.log = append(s.log, events)
	}
	return events
}

// since calls visit with each revision from the given one on that changed something.
func (s *store) since(revision int64, visit func(revision int64, events []Event)) {
	first := s.revision - int64(len(s.log)) + 1
	for r := max(revision, first); r <= s.revision; r++ {
		visit(r, s.log[r-first])
	}
}

// compact forgets what only revisions below the given one can see.
func (s *store) compact(revision int64) {
	s.compacted = revision
	first := s.revision - int64(len(s.log)) + 1
	if drop := min(revision-first, int64(len(s.log))); drop > 0 {
		s.log = slices.Clone(s.log[drop:])
	}
	s.order = slices.DeleteFunc(s.order, func(h *history) bool {
		keep := len(h.versions) // index of the version that the revision sees
		for keep > 0 {
			keep--
			if h.versions[keep].ModRevision <= revision {
				break
			}
		}
		if h.versions[keep].Version == 0 {
			keep++
		}
		if keep == len(h.versions) {
			delete(s.keys, h.key)
			return true
		}
		h.versions = slices.Clone(h.versions[keep:])
		return false
	})
}
