package cluster

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

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

// A server of gRPC that finds pings too frequent (etcd's --grpc-keepalive-min-time) lets the first
// one after an answer of its own pass, notes two more, and ends the connection at the next: what is
// listed beside each watch is asked for often enough that it never counts so far.
func TestNoEtcdFindsOurPingsTooMany(t *testing.T) {
	if between := int(listEvery / pingEvery); between > 3 {
		t.Errorf("%d pings, one each %v, between two lists, one each %v: want 3 at most", between, pingEvery, listEvery)
	}
	if pingEvery < 5*time.Second {
		t.Errorf("a ping each %v: etcd's own limit is 5s", pingEvery)
	}
}
