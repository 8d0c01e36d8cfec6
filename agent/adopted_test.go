package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/lease"
	"holdfast/brokerapi/pulsar"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// adopted is the sidecar of a Pulsar broker whose metadata store is etcd, beside a peer.
type adopted struct {
	*outage
	serving *[]string // what the broker says that it serves; nil: it does not say
}

const adoptedBytes = `{"webServiceUrl":"http://n1","pulsarServiceUrl":"pulsar://n1:6650"}`

func newAdopted(t *testing.T, change func(c *Config)) adopted {
	t.Helper()
	c := Default()
	c.Driver, c.Registration, c.PulsarCluster, c.BrokerAdmin = "pulsar", "adopt", "lab", "http://n1:8080"
	if change != nil {
		change(&c)
	}
	c = c.Effective()
	o := &outage{t: t, store: etcd.New(etcd.Config{})}
	o.client = cluster.Over(cluster.Config{Layout: c.layout()}, o.store.Conn(nil), slog.New(slog.DiscardHandler))
	o.past = life{memory: memory{Format: memoryFormat, Incarnation: "mine"}, instance: "process-1", value: []byte(adoptedBytes)}
	o.registrar = &registrar{cfg: c, brokerID: "n1", line: directLine{o.client}, clock: lease.BootClock,
		log: slog.New(slog.DiscardHandler), life: func() life { return o.past }, paused: func() bool { return o.onPause },
		deliver: func(_ context.Context, out outcome) error { o.outcomes = append(o.outcomes, out); return nil }}
	a := adopted{outage: o, serving: &[]string{}}
	o.registrar.holds = func(l *listing) {
		if l.serving = *a.serving; l.serving == nil {
			l.err = errors.New("500")
		}
		close(l.done)
	}
	a.put("n2", a.session())
	a.put("n1", a.session())
	o.first = o.establish(0)
	a.takeUp()
	o.past.memory.ConfirmedAt = o.snapshot().Revision // by a renewal
	return a
}

// takeUp remembers the last outcome, as the loop does.
func (a adopted) takeUp() {
	a.outage.takeUp()
	a.past.memory.Joined = a.outcomes[len(a.outcomes)-1].joined
}

// session is the lease of a broker.
func (a adopted) session() int64 {
	a.t.Helper()
	id, _, err := a.client.Grant(a.t.Context(), a.cfg.LeaseTTL)
	if err != nil {
		a.t.Fatal(err)
	}
	return id
}

// put is a broker that registers itself.
func (a adopted) put(id string, session int64) {
	a.t.Helper()
	a.putAs(id, adoptedBytes, session)
}

func (a adopted) putAs(id, value string, session int64) {
	a.t.Helper()
	if _, err := a.store.Put(a.t.Context(), &etcdserverpb.PutRequest{Key: []byte(pulsar.Registrations + id), Value: []byte(value), Lease: session}); err != nil {
		a.t.Fatal(err)
	}
}

// del is a broker that gives its registration up by itself.
func (a adopted) del(id string) {
	a.t.Helper()
	if _, err := a.store.DeleteRange(a.t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte(pulsar.Registrations + id)}); err != nil {
		a.t.Fatal(err)
	}
}

// endSession is the end of the broker's lease.
func (a adopted) endSession() {
	a.t.Helper()
	if err := a.client.Revoke(a.t.Context(), a.past.memory.LeaseID); err != nil {
		a.t.Fatal(err)
	}
}

// decided is the row of the last decision, and the mode that it gave.
func (a adopted) decided(row recovery.Reason, mode recovery.Mode) {
	a.t.Helper()
	d := a.outcomes[len(a.outcomes)-1].decision
	if d.Row != row || d.Mode.Mode != mode {
		a.t.Errorf("%s by row %s: %s; want %s by %s", d, d.Row, d.Detail, mode, row)
	}
	if s := a.snapshot().State; s == nil || s.Mode != string(mode) {
		a.t.Errorf("state in etcd is %+v, want %s", s, mode)
	}
}
