package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/agent/control"
	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// beforeWrites calls each function once, before the first transactions that have guards.
type beforeWrites struct {
	grpc.ClientConnInterface
	call []func()
}

func (b *beforeWrites) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if txn, ok := args.(*pb.TxnRequest); ok && len(txn.Compare) > 0 && len(b.call) > 0 {
		b.call[0]()
		b.call = b.call[1:]
	}
	return b.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func TestForgettingSaysWhatIsGoneAndWhatIsInTheWay(t *testing.T) {
	type store func(key, value string)
	keys := cluster.NewKeys("")
	n9 := func(put store) {
		put(keys.Member("n9"), `{"era":1}`)
		put(keys.State("n9"), `{"mode":"drained","reason":"stale_restart"}`)
		put(keys.Assignment("n9", "/ns/a"), "null")
		put(keys.Assignment("n9", "/ns/b"), "null")
		put(keys.Assignment("n1", "/ns/b"), "null")
	}
	const all = "its member record; its mode, drained (stale_restart); its topics (2): /ns/a, /ns/b (n1 has it as well).\n"
	assigned := func(put store) { put(keys.Assignment("n9", "/ns/c"), "null") }
	registers := func(put store) { put(keys.Registration("n9"), "{}") }
	for _, row := range []struct {
		name      string
		before    func(put store)
		meanwhile []func(put store)
		dry       bool
		out       string
		exit      int
		refused   []string // what the error says
	}{
		{name: "gone", before: n9, out: "n9 is forgotten: " + all + "Topics that wait for a broker now (1): /ns/a.\n"},
		{name: "only looked at", before: n9, dry: true, out: "n9 would be forgotten: " + all},
		{name: "not known", before: func(store) {}, exit: control.ExitFailed, refused: []string{`etcd knows no such broker below --prefix ""`}},
		{name: "registered", before: registers, exit: control.ExitRefused, refused: []string{"registered by /cluster/register/n9, under no lease, so that does not end by itself", "delete the key"}},
		{name: "registers before anything is done", before: n9, meanwhile: []func(store){registers}, exit: control.ExitRefused, refused: []string{"changed meanwhile: try again"}},
		{name: "registers when its topics are gone", before: n9, meanwhile: []func(store){func(store) {}, registers}, exit: control.ExitRefused,
			refused: []string{"topics that are unassigned already (1): /ns/a; the rest is as it was", "changed meanwhile: try again"}},
		{name: "is assigned a topic meanwhile", before: n9, meanwhile: []func(store){func(store) {}, assigned}, exit: control.ExitRefused,
			refused: []string{"topics that are unassigned already (1): /ns/a; the rest is as it was", "changed meanwhile: try again"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := memory.New(memory.Config{})
			kv := pb.NewKVClient(s.Conn(nil))
			put := func(key, value string) {
				if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)}); err != nil {
					t.Fatal(err)
				}
			}
			row.before(put)
			conn := &beforeWrites{ClientConnInterface: s.Conn(nil)}
			for _, f := range row.meanwhile {
				conn.call = append(conn.call, func() { f(put) })
			}
			var out strings.Builder
			c := call{invocation: cli.NewContext(&cli.App{Writer: &output{to: &out}}, nil, nil)}
			err := c.forget(cluster.Over(cluster.Config{}, conn, nil), "n9", row.dry)
			if out.String() != row.out || (err == nil) != (row.exit == control.ExitDone) {
				t.Errorf("%v\ngot  %swant %s", err, out.String(), row.out)
			}
			var exit *control.ExitError
			if refused := errors.As(err, &exit) && exit.Code == control.ExitRefused; refused != (row.exit == control.ExitRefused) {
				t.Errorf("%v: refused for safety: %t", err, refused)
			}
			for _, want := range row.refused {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %q in it", err, want)
				}
			}
		})
	}
}
