package memory

import (
	"context"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// NewStream implements grpc.ClientConnInterface. As with gRPC, the stream's resources are
// given back when its context ends or RecvMsg returns an error.
func (c *Conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	t := &stream{conn: c, method: method, caller: ctx}
	switch method {
	case pb.Watch_Watch_FullMethodName:
		t.server = &watchSide{c.s.newWatchStream(), c.member}
	case pb.Lease_LeaseKeepAlive_FullMethodName:
		t.server = &renewSide{s: c.s, member: c.member, answered: make(chan struct{}, 1)}
	default:
		return nil, status.Errorf(codes.Unimplemented, "%s is not implemented in memory", method)
	}
	t.ctx, t.end = c.bound(ctx)
	context.AfterFunc(t.ctx, func() {
		t.end(nil) // the caller's context may have ended it: lets go of the connection
		t.server.close()
	})
	return t, nil
}

// serverSide is the server's end of a stream.
type serverSide interface {
	take(ctx context.Context, request any) error
	finish() // no request will follow
	next(ctx context.Context) (any, error)
	close()
}

// stream is the client's end. Its messages are delivered in order. Where a delivery may
// block, each has a goroutine that waits for the one before.
type stream struct {
	conn   *Conn
	method string
	caller context.Context
	ctx    context.Context // the caller's, ended by the connection and by failures too
	end    context.CancelCauseFunc
	server serverSide

	mu   sync.Mutex
	last chan struct{} // closed when the last message sent has been delivered
}

func (t *stream) Header() (metadata.MD, error) { return nil, nil }
func (t *stream) Trailer() metadata.MD         { return nil }
func (t *stream) Context() context.Context     { return t.ctx }

// SendMsg does not wait for the delivery. As with gRPC, a stream that has failed answers
// EOF here, and RecvMsg knows why.
func (t *stream) SendMsg(m any) error {
	if t.ctx.Err() != nil {
		return io.EOF
	}
	request := proto.Clone(m.(proto.Message))
	t.deliver(func() error {
		if t.conn.via != nil {
			if err := t.conn.via.Request(t.ctx, t.method); err != nil {
				return err
			}
		}
		return t.server.take(t.ctx, request)
	})
	return nil
}

// CloseSend implements grpc.ClientStream.
func (t *stream) CloseSend() error {
	t.deliver(func() error {
		t.server.finish()
		return nil
	})
	return nil
}

func (t *stream) deliver(f func() error) {
	if _, watch := t.server.(*watchSide); watch && t.conn.via == nil {
		if err := f(); err != nil { // nothing here blocks
			t.end(asStatus(err))
		}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before, done := t.last, make(chan struct{})
	t.last = done
	t.conn.s.deliveries.Go(func() {
		defer close(done)
		if before != nil {
			<-before
		}
		if err := f(); err != nil {
			t.end(asStatus(err))
		}
	})
}

// RecvMsg implements grpc.ClientStream.
func (t *stream) RecvMsg(m any) error {
	answer, err := t.server.next(t.ctx)
	if err == nil {
		err = t.conn.reply(t.ctx, t.method)
	}
	if err != nil {
		err = t.conn.failure(t.caller, t.ctx, err)
		t.end(err)
		return err
	}
	move(m, answer)
	return nil
}

// watchSide is a stream of watches.
type watchSide struct {
	*watchStream
	member *Member
}

func (w *watchSide) take(_ context.Context, request any) error {
	w.watchStream.take(request.(*pb.WatchRequest))
	return nil
}

func (w *watchSide) finish() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.end(io.EOF)
}

func (w *watchSide) next(ctx context.Context) (any, error) {
	answer, err := w.watchStream.next(ctx)
	if err == nil {
		err = w.member.pass(ctx)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// renewSide is a stream of renewals.
type renewSide struct {
	s      *Server
	member *Member

	mu       sync.Mutex
	answers  []*pb.LeaseKeepAliveResponse
	finished bool
	answered chan struct{} // holds one when there is something new
}

func (k *renewSide) take(ctx context.Context, request any) error {
	answer, err := k.member.renew(ctx, k.s, request.(*pb.LeaseKeepAliveRequest).ID)
	if err != nil {
		return err
	}
	k.tell(func() { k.answers = append(k.answers, answer) })
	return nil
}

func (k *renewSide) finish() { k.tell(func() { k.finished = true }) }
func (k *renewSide) close()  {}

func (k *renewSide) tell(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	select {
	case k.answered <- struct{}{}:
	default:
	}
}

func (k *renewSide) next(ctx context.Context) (any, error) {
	for {
		k.mu.Lock()
		if len(k.answers) > 0 {
			answer := k.answers[0]
			k.answers = k.answers[1:]
			k.mu.Unlock()
			return answer, nil
		}
		finished := k.finished
		k.mu.Unlock()
		if finished {
			return nil, io.EOF
		}
		select {
		case <-k.answered:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
