//go:build pulsar

package pulsar

import (
	"context"
	"os"
	"testing"

	"holdfast/lab/harness"
)

// couple is a real broker and its sidecar.
type couple struct {
	*harness.Sidecar
	t      *testing.T
	lab    *harness.Lab
	broker *harness.ApacheBroker
}

// couples starts brokers of a new cluster with a sidecar each and waits until all are ready.
func couples(t *testing.T, n int, flags ...string) (*harness.Apache, []*couple) {
	t.Helper()
	needParts(t)
	l := harness.ForTest(t)
	a, err := l.StartApache(t.Context(), harness.ApacheOptions{})
	ok(t, err)
	var all []*couple
	for range n {
		b, err := a.NewBroker()
		ok(t, err)
		ok(t, b.Launch())
		c := &couple{t: t, lab: l, broker: b}
		c.Sidecar, err = NewSidecar(l, a.Etcd.Endpoint(), b, flags...)
		ok(t, err)
		all = append(all, c)
	}
	for _, c := range all {
		ok(t, c.broker.AwaitUp(t.Context()))
		ok(t, c.Start())
	}
	for _, c := range all {
		ok(t, c.AwaitReady(t.Context(), harness.Patience))
	}
	makeNamespaces(t, all[0].broker)
	return a, all
}

// verb runs a verb that must work.
func (c *couple) verb(name string, args ...string) harness.Result {
	c.t.Helper()
	res, err := c.Verb(soon(c.t), name, args...)
	ok(c.t, err)
	if res.Exit != 0 {
		c.t.Fatalf("%s: exit code %d: %s", name, res.Exit, res.Stderr)
	}
	return res
}

// owned are the bundles that could be elsewhere.
func (c *couple) owned(ctx context.Context) []string {
	c.t.Helper()
	shared, _, err := c.broker.Owned(ctx)
	ok(c.t, err)
	return shared
}

func (c *couple) hasStatusFile() bool {
	_, err := os.Stat(c.broker.StatusFile)
	return err == nil
}

// active waits until the broker is ready, attached and active.
func (c *couple) active() harness.Status {
	c.t.Helper()
	ok(c.t, c.AwaitReady(c.t.Context(), bootBound))
	st, err := c.Await(c.t.Context(), harness.Patience, "active", func(st harness.Status) bool { return st.Mode == "active" && st.Attachment == "attached" })
	ok(c.t, err)
	return st
}
