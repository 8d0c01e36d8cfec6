package memory_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"holdfast/cluster/memory"
)

// raw is the etcd client's own interface to the server.
func raw(s *memory.Server) clientv3.KV {
	return clientv3.NewKVFromKVClient(pb.NewKVClient(s.Conn(nil)), nil)
}

func content(s *memory.Server) map[string]string {
	all := map[string]string{}
	s.Inspect(func(v memory.View) {
		for _, kv := range v.List("") {
			all[kv.Key] = kv.Value
		}
	})
	return all
}

func TestCompactionSparesAWatchUnderWayAndRefusesALateOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(memory.Config{})
		kv := raw(s)
		for i := range 5 { // revisions 2 to 6
			if _, err := kv.Put(t.Context(), "a", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := func(from int64) pb.Watch_WatchClient {
			stream, err := pb.NewWatchClient(s.Conn(nil)).Watch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
				CreateRequest: &pb.WatchCreateRequest{Key: []byte("a"), StartRevision: from, PrevKv: true},
			}}); err != nil {
				t.Fatal(err)
			}
			if created, err := stream.Recv(); err != nil || !created.Created {
				t.Fatalf("%v, %v", created, err)
			}
			return stream
		}
		early := watch(3)
		if _, err := kv.Compact(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "a", "5"); err != nil {
			t.Fatal(err)
		}
		for first := int64(3); first <= 7; { // the past may come in one answer
			answer, err := early.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range answer.Events {
				if e.Kv.ModRevision != first {
					t.Fatalf("told of revision %d, want %d", e.Kv.ModRevision, first)
				}
				first++
			}
		}
		if answer, err := watch(4).Recv(); err != nil || !answer.Canceled || answer.CompactRevision != 5 {
			t.Errorf("from a compacted revision: %v, %v", answer, err)
		}
		answer, err := watch(5).Recv()
		if err != nil || len(answer.Events) != 3 || answer.Events[0].PrevKv != nil || answer.Events[1].PrevKv == nil {
			t.Errorf("from the compacted revision itself: %v, %v; want three events, the first without what is forgotten", answer, err)
		}
		if _, err := kv.Get(t.Context(), "a", clientv3.WithRev(4)); err != rpctypes.ErrCompacted {
			t.Errorf("a read of the past: %v", err)
		}
		if _, err := kv.Compact(t.Context(), 5); err != rpctypes.ErrCompacted {
			t.Errorf("compacting again: %v", err)
		}
		if _, err := kv.Compact(t.Context(), 8); err != rpctypes.ErrFutureRev {
			t.Errorf("compacting the future: %v", err)
		}
	})
}

// A field that move leaves out would be missing only here, not behind a socket.
func TestAnswersArriveWithEveryField(t *testing.T) {
	for _, answer := range []proto.Message{
		&pb.TxnResponse{}, &pb.RangeResponse{}, &pb.PutResponse{}, &pb.DeleteRangeResponse{}, &pb.CompactionResponse{},
		&pb.LeaseGrantResponse{}, &pb.LeaseRevokeResponse{}, &pb.LeaseTimeToLiveResponse{}, &pb.LeaseLeasesResponse{},
		&pb.LeaseKeepAliveResponse{}, &pb.WatchResponse{},
	} {
		fill(answer.ProtoReflect(), 0)
		arrived := answer.ProtoReflect().New().Interface()
		memory.Move(arrived, answer)
		if !proto.Equal(arrived, answer) {
			t.Errorf("%T: %v arrived as %v", answer, answer, arrived)
		}
	}
}

// fill sets every field to something that is not its zero.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Message() != nil && depth > 2:
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), depth+1)
		case f.IsList():
			m.Mutable(f).List().Append(something(f))
		case f.Message() != nil:
			fill(m.Mutable(f).Message(), depth+1)
		default:
			m.Set(f, something(f))
		}
	}
}

func something(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	}
	panic(fmt.Sprintf("what is a %v?", f.Kind()))
}

func TestMessagesAreNotShared(t *testing.T) {
	s := memory.New(memory.Config{})
	kv := pb.NewKVClient(s.Conn(nil))
	put := &pb.PutRequest{Key: []byte("a"), Value: []byte("1")}
	if _, err := kv.Put(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	put.Key[0], put.Value[0] = 'x', 'x'
	for range 2 {
		got, err := kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")})
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
			t.Fatalf("%v, %v", got, err)
		}
		got.Kvs[0].Key[0], got.Kvs[0].Value[0], got.Kvs[0].ModRevision = 'y', 'y', 99
	}
}
