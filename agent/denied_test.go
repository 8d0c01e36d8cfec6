package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
)

// Whoever asked, and as long as it lasts: the status says it with what is to be done, the metric counts
// it, the journal has its begin and its end.
func TestWhatEtcdDeniesIsSeen(t *testing.T) {
	a, reg := builtWith(t)
	a.cfg.EtcdUser = "n1"
	store := etcd.New(etcd.Config{})
	user := cluster.Over(cluster.Config{Denials: &a.denials}, narrow{store.Conn(nil), "/cluster/"}, nil)
	granted := cluster.Over(cluster.Config{Denials: &a.denials}, store.Conn(nil), nil)
	defer user.Close()
	defer granted.Close()
	look := func(c *cluster.Client) {
		_, _ = c.SnapshotOf(t.Context(), cluster.Who{Name: "n1", Registered: "n1"})
		_ = c.Moves(t.Context(), func(string, cluster.KV) {})
		a.noteDenied()
	}
	if st := a.status(); len(st.Denied) > 0 || strings.Contains(st.Summary, "Denied") {
		t.Errorf("nothing was denied: %+v", st)
	}
	look(user)
	look(user)
	st := a.status()
	const want = ` Denied (moves): --etcd-user "n1": etcd refuses it: permission denied to read /cluster/moves/: ` +
		`etcdctl role grant-permission ROLE --prefix=true read /cluster/moves/: see docs/security.md.`
	if !strings.HasSuffix(st.Summary, want) || len(st.Denied) != 2 {
		t.Errorf("%s: %s\n%+v", st.Severity, st.Summary, st.Denied)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "holdfast_etcd_denied_total" {
			for _, m := range f.GetMetric() {
				want := map[string]float64{"registration": 2, "moves": 2}[m.GetLabel()[0].GetValue()]
				if got := m.GetCounter().GetValue(); got != want {
					t.Errorf("%s: %g, want %g", m.GetLabel()[0].GetValue(), got, want)
				}
			}
		}
	}
	look(granted)
	if st := a.status(); len(st.Denied) > 0 || strings.Contains(st.Summary, "Denied") {
		t.Errorf("all was granted: %+v", st)
	}
	var told []string
	events, _ := a.journal.Since(0)
	for _, e := range events {
		told = append(told, fmt.Sprintf("%s %s %s", e.Kind, e.To, e.Reason))
		if !strings.Contains(e.Detail, "ROLE --prefix=true read /cluster/") {
			t.Errorf("%+v", e)
		}
	}
	if got := strings.Join(told, ", "); got != "etcd denied moves, etcd denied registration, etcd over moves, etcd over registration" {
		t.Errorf("the journal has: %s", got)
	}
}

// readOnly is a connection of a user who may write nothing.
type readOnly struct{ grpc.ClientConnInterface }

func (r readOnly) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		for _, op := range slices.Concat(txn.Success, txn.Failure) {
			if op.GetRequestPut() != nil {
				return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
			}
		}
	}
	return r.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// A right that each topic asks for is one: it does not fill the journal.
func TestARightThatManyTopicsLackIsToldOnce(t *testing.T) {
	a, _ := builtWith(t)
	user := cluster.Over(cluster.Config{Denials: &a.denials}, readOnly{etcd.New(etcd.Config{}).Conn(nil)}, nil)
	defer user.Close()
	for i := range 50 {
		topic := fmt.Sprintf("/n/%d", i)
		_, _ = user.WriteJournal(t.Context(), nil, cluster.JournalWrite{Key: user.Keys().Move(topic), Topic: topic, Value: []byte("{}")})
		a.noteDenied()
	}
	if events, _ := a.journal.Since(0); len(events) != 1 || len(a.status().Denied) != 1 || !strings.Contains(a.status().Summary, "/cluster/moves/n/49") {
		t.Errorf("%d events, %+v", len(events), a.status().Denied)
	}
}

// narrow is a connection of a user who may not read what is below a prefix, but single keys.
type narrow struct {
	grpc.ClientConnInterface
	prefix string
}

func (n narrow) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		for _, op := range slices.Concat(txn.Success, txn.Failure) {
			if r := op.GetRequestRange(); len(r.GetRangeEnd()) > 0 && strings.HasPrefix(string(r.Key), n.prefix) {
				return status.Error(codes.PermissionDenied, "etcdserver: permission denied")
			}
		}
	}
	return n.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
