package cluster

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"holdfast/cluster/memory"
)

// held is what a proxy reads from a watch: nothing, while the proxy keeps it back.
type held struct {
	io.ReadCloser
	back *atomic.Bool
	ctx  context.Context
}

func (h held) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	if h.back.Load() {
		<-h.ctx.Done()
		return 0, h.ctx.Err()
	}
	return n, err
}

// An HTTP/2 proxy ends the client's connection and has one of its own: it answers pings
// itself, and each stream goes its own way through it.
func TestAWatchLeavesAProxyThatKeepsItsNewsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(memory.Config{})
		member, front := bufconn.Listen(1<<16), bufconn.Listen(1<<16)
		server := grpc.NewServer()
		store.Register(server)
		go server.Serve(member)
		defer server.Stop()

		var plain http.Protocols
		plain.SetUnencryptedHTTP2(true)
		var keepsBack atomic.Bool
		behind := &http.Transport{Protocols: &plain, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return member.DialContext(ctx)
		}}
		defer behind.CloseIdleConnections()
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "member"})
		proxy.Transport, proxy.FlushInterval = behind, -1
		proxy.ModifyResponse = func(r *http.Response) error {
			if r.Request.URL.Path == pb.Watch_Watch_FullMethodName {
				r.Body = held{r.Body, &keepsBack, r.Request.Context()}
			}
			return nil
		}
		proxying := &http.Server{Handler: proxy, Protocols: &plain}
		go proxying.Serve(front)
		defer proxying.Close()

		var dials atomic.Int32
		c, err := openMain(Config{Endpoints: []string{"http://proxy:1"}}, nil, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dials.Add(1) > 1 {
				keepsBack.Store(false)
			}
			return front.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		put := func() {
			if _, err := store.Put(t.Context(), &pb.PutRequest{Key: []byte("/x")}); err != nil {
				t.Fatal(err)
			}
		}

		changes := changesOf(t, c, "/x")
		synctest.Wait()
		put()
		within(t, time.Second, changes)
		time.Sleep(time.Hour)
		if dials.Load() != 1 {
			t.Error("a proxy that is well was left")
		}
		keepsBack.Store(true)
		put()
		within(t, signEach*reachEvery+2*pageTimeout+time.Second, changes)
	})
}
