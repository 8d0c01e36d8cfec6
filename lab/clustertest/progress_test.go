package clustertest

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/cluster/memory"
)

// What is not answered is not waited for: an answer that came late would be one too many.
func TestProgressIsToldOnceEachWatchHasBegun(t *testing.T) {
	cfg, _ := ownEtcd(t, nil)
	conn := must[*grpc.ClientConn](t)(grpc.NewClient(cfg.AdvertiseClientUrls[0].Host, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	for name, s := range map[string]side{
		"etcd":   newSide(conn),
		"memory": newSide(memory.New(memory.Config{}).Conn(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			p := &pair{t: t}
			put := func(key string) int64 {
				t.Helper()
				return must[*pb.PutResponse](t)(s.kv.Put(bounded(t), &pb.PutRequest{Key: []byte(key)})).Header.Revision
			}
			stream := must[pb.Watch_WatchClient](t)(s.watch.Watch(bounded(t)))
			ask := func(r *pb.WatchRequest) {
				t.Helper()
				if err := stream.Send(r); err != nil {
					t.Fatal(err)
				}
			}
			progress := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
			watch := func(key string, from int64) {
				t.Helper()
				ask(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
					CreateRequest: &pb.WatchCreateRequest{Key: []byte(key), StartRevision: from}}})
				if answer := p.answer(stream); !answer.Created || answer.Canceled {
					t.Fatalf("asked for a watch, got %v", answer)
				}
			}
			expectProgress := func(revision int64) {
				t.Helper()
				ask(progress)
				if a := p.answer(stream); a.WatchId != -1 || a.Created || a.Canceled || len(a.Events) > 0 || a.Header.Revision != revision {
					t.Fatalf("asked for progress at revision %d, got %v", revision, a)
				}
			}

			now := put("/a")
			ask(progress) // nothing is watched
			watch("/now", 0)
			expectProgress(now)
			watch("/next", now+1)
			ask(progress)     // the next revision has not come
			watch("/mark", 0) // requests of a stream are taken in turn
			if next := put("/next"); len(p.answer(stream).Events) != 1 {
				t.Fatalf("not told of revision %d", next)
			}
			expectProgress(now + 1)
			now = put("/elsewhere")
			expectProgress(now)
			watch("/later", now+2)
			put("/elsewhere")
			ask(progress)
			watch("/mark", 0)
			now = put("/elsewhere")
			expectProgress(now)
		})
	}
}
