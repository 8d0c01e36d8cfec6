package memory_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/cluster/memory"
)

func TestWatchersHearEveryRevisionOnceInOrderWhoeverWrites(t *testing.T) {
	const writers, writes = 8, 100
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var listening, writing sync.WaitGroup
		for from := range int64(4) { // 0 is now, the others are the past, if it is that by then
			link := memory.NewLink()
			link.SetDelay(func(memory.Direction) time.Duration { return time.Millisecond })
			stream, err := pb.NewWatchClient(s.Conn(link)).Watch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: from},
			}}); err != nil {
				t.Fatal(err)
			}
			if from == 0 {
				if _, err := stream.Recv(); err != nil { // it has begun
					t.Fatal(err)
				}
			}
			listening.Go(func() {
				for next := max(from, 2); next <= writers*writes+1; {
					answer, err := stream.Recv()
					if err != nil {
						t.Error(err)
						return
					}
					for _, e := range answer.Events {
						if e.Kv.ModRevision != next {
							t.Errorf("told of revision %d, want %d", e.Kv.ModRevision, next)
							return
						}
						next++
					}
				}
			})
		}
		for w := range writers {
			kv := raw(s)
			writing.Go(func() {
				for i := range writes {
					if _, err := kv.Put(ctx, fmt.Sprintf("k%d", w), fmt.Sprint(i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writing.Wait()
		listening.Wait()
		cancel()
		s.Wait()
	})
}
