package cluster

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// breaking is an etcd that ends each request as one does that shuts down, or sees the end of its
// time before we do.
type breaking struct {
	pb.UnimplementedKVServer
	code  codes.Code
	asked atomic.Int64
}

func (b *breaking) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	b.asked.Add(1)
	return nil, status.Error(b.code, "broken off")
}

// The write may have happened.
func TestAWriteIsSentOnce(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Unknown} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		etcd, server := &breaking{code: code}, grpc.NewServer()
		pb.RegisterKVServer(server, etcd)
		go server.Serve(listener)
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		c, err := Open(Config{Endpoints: []string{"http://127.0.0.1:" + port, "http://localhost:" + port}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.PutState(t.Context(), "b1", State{Mode: ModeActive}, 0); err == nil || etcd.asked.Load() != 1 {
			t.Errorf("%v: sent %d times, %v", code, etcd.asked.Load(), err)
		}
		c.Close()
		server.Stop()
	}
}
