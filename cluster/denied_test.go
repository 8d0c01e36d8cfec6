package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"holdfast/cluster/memory"
)

// denying is an etcd that lacks rights, such as "read /a".
type denying struct {
	grpc.ClientConnInterface
	lacks map[string]bool
	asked int
}

func (d *denying) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*etcdserverpb.TxnRequest); ok {
		d.asked++
		if d.denies(txn) {
			return rpctypes.ErrGRPCPermissionDenied
		}
	}
	return d.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (d *denying) denies(txn *etcdserverpb.TxnRequest) (so bool) {
	for _, c := range txn.Compare {
		so = so || d.lacks["read "+string(c.Key)]
	}
	for _, op := range append(txn.Success[:len(txn.Success):len(txn.Success)], txn.Failure...) {
		so = so || d.lacks["read "+string(op.GetRequestRange().GetKey())] || d.lacks["write "+string(op.GetRequestPut().GetKey())] ||
			d.lacks["write "+string(op.GetRequestDeleteRange().GetKey())] || op.GetRequestTxn() != nil && d.denies(op.GetRequestTxn())
	}
	return so
}

func TestADeniedTransactionNamesTheRightThatIsMissing(t *testing.T) {
	var many []string
	for i := range getsPerTxn {
		many = append(many, fmt.Sprintf("/many/%03d", i))
	}
	var acts []topicAct
	for i := range nestedPerTxn {
		key := fmt.Sprintf("/topics/%02d", i)
		acts = append(acts, actOn(fmt.Sprintf("/n/%02d", i), []clientv3.Cmp{written(key, 0)}, []clientv3.Op{clientv3.OpPut(key, "")}, clientv3.OpGet(key)))
	}
	guards := []clientv3.Cmp{written("/guard", 0), there("/any/").WithPrefix()}
	write := func(ctx context.Context, c *Client) error {
		_, _, err := c.write(ctx, guards, clientv3.OpPut("/a", ""), clientv3.OpDelete("/b/", clientv3.WithPrefix()), clientv3.OpPut("/c", ""))
		return err
	}
	for _, tt := range []struct {
		lacks, want string
		ask         func(context.Context, *Client) error
	}{
		{"read /guard", "to read /guard: etcdctl role grant-permission ROLE read /guard", write},
		{"read /any/", "to read /any/: etcdctl role grant-permission ROLE --prefix=true read /any/", write},
		{"write /a", "to write /a: etcdctl role grant-permission ROLE readwrite /a", write},
		{"write /b/", "to write /b/: etcdctl role grant-permission ROLE --prefix=true readwrite /b/", write},
		{"write /c", "to write /c: etcdctl role grant-permission ROLE readwrite /c", write},
		{"read /many/113", "to read /many/113: etcdctl role grant-permission ROLE read /many/113", func(ctx context.Context, c *Client) error {
			_, _, err := c.gets(ctx, many)
			return err
		}},
		{"write /topics/71", "to write /topics/71: etcdctl role grant-permission ROLE --prefix=true readwrite /topics/", func(ctx context.Context, c *Client) error {
			return c.eachTopic(ctx, guards, acts, func(int, *etcdserverpb.TxnResponse) {})
		}},
	} {
		d := &denying{memory.New(memory.Config{}).Conn(nil), map[string]bool{tt.lacks: true}, 0}
		c := Over(Config{}, d, nil)
		err := tt.ask(t.Context(), c)
		if !Denied(err) || Classify(err) != ClassAuth || !strings.HasSuffix(fmt.Sprint(err), "etcdserver: permission denied "+tt.want) || d.asked > 10 {
			t.Errorf("%s: asked %d times: %v", tt.lacks, d.asked, err)
		}
		open, count := c.denials.Look(time.Now())
		if len(open) != 1 || open[0].Right+" "+open[0].Key != tt.lacks || !strings.HasSuffix(fmt.Sprint(err), open[0].Error) || count[open[0].For] != 1 {
			t.Errorf("%s: %+v, %v", tt.lacks, open, count)
		}
		d.lacks = nil
		for _, key := range []string{"/a", "/c", "/topics/71"} {
			if kv, _, err := c.get(t.Context(), key); err != nil || kv != nil {
				t.Errorf("%s: %s was written: %v, %v", tt.lacks, key, kv, err)
			}
		}
		_ = tt.ask(t.Context(), c) // guards that do not hold take rights, too
		if open, _ := c.denials.Look(time.Now()); len(open) > 0 {
			t.Errorf("%s: granted, and still told: %+v", tt.lacks, open)
		}
		c.Close()
	}
}

// The page about security grants some keys by their prefix: it is the prefix that is named.
func TestWhatIsGrantedIsWhatThePageGrants(t *testing.T) {
	for _, tt := range [][3]string{ // a key, what is granted to read it and to write it; empty: the key
		{"/cluster/register/n1", "/cluster/register/", ""},
		{"/cluster/brokers/n1/state", "/cluster/brokers/n1/", ""},
		{"/cluster/brokers/n1/shop/orders", "/cluster/brokers/n1/", "/cluster/brokers/"},
		{"/cluster/brokers/n1/shop/state", "/cluster/brokers/n1/", "/cluster/brokers/"},
		{"/cluster/brokers/", "", ""},
		{"/cluster/members/n1", "/cluster/members/", ""},
		{"/cluster/era", "", ""},
		{"/topics/shop/orders", "/topics/", "/topics/"},
		{"/cluster/moves/shop/orders", "/cluster/moves/", "/cluster/moves/"},
		{"/cluster/owners/shop/orders", "/cluster/owners/", "/cluster/owners/"},
		{"/cluster/unassigned/shop/orders", "/cluster/unassigned/", "/cluster/unassigned/"},
		{"/cluster/load/n1", "/cluster/load/", "/cluster/load/"},
		{"/cluster/drains/n1", "", ""},
		{"/cluster/locks/drain", "", ""},
	} {
		for i, write := range []bool{false, true} {
			want := "/prod" + cmp.Or(tt[i+1], tt[0])
			if got := NewKeys("/prod").granted("/prod"+tt[0], write); got != want {
				t.Errorf("%s, write %v: %s, want %s", tt[0], write, got, want)
			}
		}
	}
}

func TestADenialLastsUntilTheRightIsGrantedOrNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &denying{memory.New(memory.Config{}).Conn(nil), map[string]bool{"read /p/cluster/register/": true, "write /p/cluster/moves/n/t": true}, 0}
		var denials Denials
		c := Over(Config{Prefix: "/p", Denials: &denials}, d, nil)
		defer c.Close()
		others := func() { _, _, _ = c.read(t.Context(), clientv3.OpGet(c.keys.Registrations(), clientv3.WithPrefix())) }
		shows := func(want string) {
			t.Helper()
			open, _ := denials.Look(time.Now())
			got := ""
			for _, o := range open {
				got += fmt.Sprintf("%s: %s %s for %s; ", o.For, o.Right, o.Key, o.Last.Sub(o.Since))
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		shows("")
		others()
		time.Sleep(time.Second)
		_, _, _ = c.write(t.Context(), nil, clientv3.OpPut(c.keys.Move("/n/t"), ""))
		others()
		_, _, _ = c.Registered(t.Context(), "n1") // is no word about those of others
		const moves = "moves: write /p/cluster/moves/n/t for 0s; "
		shows(moves + "registration: read /p/cluster/register/ for 1s; ")
		d.lacks["read /p/cluster/register/"] = false
		others()
		shows(moves)
		time.Sleep(deniedLately)
		shows(moves)
		time.Sleep(time.Nanosecond)
		shows("")
		for i := range 100 { // each time another topic is the first that is asked for
			key := c.keys.Owner(fmt.Sprintf("/n/%d", i))
			d.lacks["write "+key] = true
			time.Sleep(5 * time.Second)
			_, _, _ = c.write(t.Context(), nil, clientv3.OpPut(key, ""))
		}
		shows("ownership: write /p/cluster/owners/n/99 for 8m15s; ")
		clear(d.lacks)
		_, _, _ = c.write(t.Context(), nil, clientv3.OpPut(c.keys.Owner("/n/99"), ""))
		shows("")
	})
}

func TestWhatKeysAreFor(t *testing.T) {
	k := NewKeys("/p")
	for key, want := range map[string]string{
		k.Registrations(): "registration", k.Registration("n1"): "registration", k.Members(): "registration", k.Era(): "registration",
		k.State("n1"): "assignments", k.Assignments("n1"): "assignments", k.Assignment("n1", "/n/state"): "assignments", k.Unassigned("/n/t"): "assignments",
		k.Owner("/n/t"): "ownership", k.Moves().Key: "moves", k.Drain("n1"): "moves", k.drainLocks(2)[1]: "moves",
		k.TopicRecords(): "topics", "/storage/topics/n/t/state": "other", "": "other",
	} {
		if got := k.purpose(key); got != want || !slices.Contains(Purposes, got) {
			t.Errorf("%s is for %s, want %s", key, got, want)
		}
	}
}
