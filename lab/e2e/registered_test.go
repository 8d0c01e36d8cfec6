package e2e

import (
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// This file is a node as etcd has it: its names, its registration, its mode, and what
// the history says of them.

// names are those under which etcd has known the broker, the present one last.
func (n *node) names() []string {
	n.t.Helper()
	b, ok := n.broker.(numbered)
	if !ok {
		return []string{n.id}
	}
	n.revisionSeen()
	var all []string
	for _, c := range n.history.Changes() {
		if name, ok := n.keys.RegisteredName(c.Key); ok && strings.Contains(c.Value, b.Wears()) && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		n.t.Fatalf("%s was never registered", n.id)
	}
	return all
}

func (n *node) name() string { n.t.Helper(); all := n.names(); return all[len(all)-1] }

// isState matches the changes of the broker's mode, under each of its names.
func (n *node) isState() func(harness.Change) bool {
	n.t.Helper()
	names := n.names()
	return func(c harness.Change) bool {
		return slices.ContainsFunc(names, func(name string) bool { return c.Key == n.keys.State(name) })
	}
}

// registrationKey is where the registration stands.
func (n *node) registrationKey() string {
	n.t.Helper()
	return n.keys.Registration(n.name())
}

func (n *node) registration() harness.RegistrationKey {
	n.t.Helper()
	r, err := harness.ReadRegistrationAt(n.ctx, n.etcd.Client(), n.registrationKey())
	n.must(err)
	return r
}

// isInMode checks the mode in etcd.
func (n *node) isInMode(mode, reason string) {
	n.t.Helper()
	st, err := n.keys.ReadState(n.ctx, n.etcd.Client(), n.name())
	n.must(err)
	if st.Mode != mode || st.Reason != reason {
		n.t.Errorf("%s is %q, reason %q; want %s, %s", n.id, st.Mode, st.Reason, mode, reason)
	}
}

// revision is etcd's present one.
func (s *stage) revision() int64 {
	s.t.Helper()
	res, err := s.etcd.Client().Get(s.ctx, "/", clientv3.WithCountOnly())
	s.must(err)
	return res.Header.Revision
}

// awaitExpiry waits for the deletion of the node's present registration after revision.
func (n *node) awaitExpiry(after int64) harness.Change {
	n.t.Helper()
	c, err := n.history.Await(n.ctx, n.ttl+bound, "the expiry of "+n.id, after+1,
		harness.DeletedKey(n.registrationKey()))
	n.must(err)
	return c
}

// awaitRegistered waits for a registration of the node after revision that its sidecar
// wrote, or took over.
func (n *node) awaitRegistered(after int64) harness.Change {
	n.t.Helper()
	var written func(harness.Change) bool
	switch b := n.broker.(type) {
	default:
		written = harness.PutKey(n.registrationKey())
	case numbered:
		written = func(c harness.Change) bool {
			_, ok := n.keys.RegisteredName(c.Key)
			return ok && strings.Contains(c.Value, b.Wears()) && c.Revision > c.CreateRevision
		}
	}
	c, err := n.history.Await(n.ctx, bound, "the registration of "+n.id, after+1, written)
	n.must(err)
	return c
}

// withState checks that one transaction wrote the registration and the mode.
func (n *node) withState(registered harness.Change, mode, reason string) {
	n.t.Helper()
	isState := n.isState()
	for _, c := range n.history.At(registered.Revision) {
		if !isState(c) {
			continue
		}
		if !isMode(c, mode) || !strings.Contains(c.Value, `"reason":"`+reason+`"`) {
			n.t.Errorf(harness.Violation+"%s registered in revision %d with state %s; want %s, %s", n.id, c.Revision, c.Value, mode, reason)
		}
		return
	}
	n.t.Errorf(harness.Violation+"%s registered in revision %d without a state in the same revision", n.id, registered.Revision)
}

// onlyDrained checks that the mode was drained after revision, and active by nobody but
// the operator. What a broker writes about itself at its start is not its sidecar's word.
func (n *node) onlyDrained(after int64) {
	n.t.Helper()
	isState := n.isState()
	n.never("the mode was another than drained, and active by the operator", after, func(c harness.Change) bool {
		return isState(c) && !isMode(c, "drained") && !strings.Contains(c.Value, `"e2e"`) && !n.byItself(c)
	})
}

// byItself says whether a change of a state is the broker's word at the start of a
// process, or the end of what one before said.
func (n *node) byItself(c harness.Change) bool {
	return n.kind.renames != "" && (c.Deleted || c.Revision == c.CreateRevision)
}

// isMode says whether a change is a put of a state with that mode.
func isMode(c harness.Change, mode string) bool {
	return !c.Deleted && strings.HasSuffix(c.Key, "/state") && strings.Contains(c.Value, `"mode":"`+mode+`"`)
}

// never checks that no change after revision matches. What a broker writes outside of the
// sidecars' keys is no word of Holdfast: the scenario was not played as it is meant to be.
func (s *stage) never(what string, after int64, match func(harness.Change) bool) {
	s.t.Helper()
	s.revisionSeen()
	for _, c := range s.history.Changes() {
		switch {
		case c.Revision <= after || !match(c):
		case strings.HasPrefix(c.Key, "/cluster/"):
			s.t.Errorf(harness.Violation+"%s: %v", what, c)
		default:
			s.t.Errorf("%s: %v", what, c)
		}
	}
	s.should(s.history.Err())
}

// revisionSeen waits until the history has everything up to now.
func (s *stage) revisionSeen() {
	s.t.Helper()
	res, err := s.etcd.Client().Put(s.ctx, "/lab/mark", "")
	s.must(err)
	_, err = s.history.Await(s.ctx, bound, "a mark", res.Header.Revision, harness.PutKey("/lab/mark"))
	s.must(err)
}

// waitOut lets a lease of the lab's own run out, and so the time of a TTL pass.
func (s *stage) waitOut(ttl time.Duration) {
	s.t.Helper()
	lease, err := s.etcd.Client().Grant(s.ctx, int64((ttl+time.Second-1)/time.Second))
	s.must(err)
	put, err := s.etcd.Client().Put(s.ctx, "/lab/ttl", "", clientv3.WithLease(lease.ID))
	s.must(err)
	_, err = s.history.Await(s.ctx, ttl+bound, "a TTL to pass", put.Header.Revision, harness.DeletedKey("/lab/ttl"))
	s.must(err)
}
