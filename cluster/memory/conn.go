package memory

import (
	"context"
	"errors"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Path is the network between one client and the server. Link is one.
//
// Its methods get the context of the call or stream, which also ends when the connection
// does, and the full gRPC method. They may block for as long as the network would. What
// they return is what gRPC would make of it, as a status or an error of a context, or one
// of this package's errors; then the message is lost.
type Path interface {
	// Request is called before a request, or a message of a stream, reaches the server.
	// When it returns nil although ctx has ended, the message is delivered all the same:
	// late, after the client has given up.
	Request(ctx context.Context, method string) error
	// Reply is called before an answer, or a message of a stream, reaches the client. The
	// server has done what it was asked by then.
	Reply(ctx context.Context, method string) error
	// Connection is asked for when a call or stream begins. When the context ends, so do
	// they, Unavailable with its cause as the text if that is no status. Nil never ends.
	Connection() context.Context
}

// Conn is a client's connection to a server in the same process. Its goroutines end with
// the call or stream that they are for, or when the path lets their request go.
type Conn struct {
	s      *Server
	member *Member // nil: any
	via    Path
	life   context.Context
	end    context.CancelCauseFunc
}

// errClosing is gRPC's answer on a connection that its own side has closed.
var errClosing = status.Error(codes.Canceled, "grpc: the client connection is closing")

// Conn makes a connection; a nil path is a perfect network. Options of calls are ignored.
func (s *Server) Conn(via Path) *Conn {
	c := &Conn{s: s, via: via}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Close ends what is under way on the connection, as closing a gRPC connection does. It
// waits for nothing; see Server.Wait.
func (c *Conn) Close() error {
	c.end(errClosing)
	return nil
}

// Wait returns when no request is held back by a path any more.
func (s *Server) Wait() { s.deliveries.Wait() }

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	if c.via == nil && c.member == nil {
		answer, err := c.s.call(ctx, args)
		if err == nil {
			move(reply, answer)
		}
		return asStatus(err)
	}
	call, cancel := c.bound(ctx)
	defer cancel(nil)
	type result struct {
		answer any
		err    error
	}
	done := make(chan result, 1)
	request := proto.Clone(args.(proto.Message)) // may be delivered after this returns
	c.s.deliveries.Go(func() {
		var r result
		if r.err = c.pass(call, method); r.err == nil {
			r.answer, r.err = c.s.call(call, request)
			if err := c.reply(call, method); err != nil {
				r = result{err: err}
			}
		}
		done <- r
	})
	select {
	case r := <-done:
		if r.err != nil {
			return c.failure(ctx, call, r.err)
		}
		move(reply, r.answer)
		return nil
	case <-call.Done():
		return c.failure(ctx, call, call.Err())
	}
}

// pass returns when a request has come to a member that answers.
func (c *Conn) pass(ctx context.Context, method string) error {
	if c.via != nil {
		if err := c.via.Request(ctx, method); err != nil {
			return err
		}
	}
	return c.member.pass(ctx)
}

func (c *Conn) reply(ctx context.Context, method string) error {
	if c.via == nil {
		return nil
	}
	return c.via.Reply(ctx, method)
}

// usable refuses what gRPC would not even send.
func (c *Conn) usable(ctx context.Context) error {
	if c.life.Err() != nil {
		return errClosing
	}
	return asStatus(ctx.Err())
}

// bound derives a context that also ends, with a cause, when the connection does.
func (c *Conn) bound(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	bounded, cancel := context.WithCancelCause(ctx)
	stops := []func() bool{context.AfterFunc(c.life, func() { cancel(errClosing) })}
	under := []context.Context{c.member.connection()}
	if c.via != nil {
		under = append(under, c.via.Connection())
	}
	for _, below := range under {
		if below != nil {
			stops = append(stops, context.AfterFunc(below, func() { cancel(unavailable(context.Cause(below))) }))
		}
	}
	return bounded, func(cause error) {
		for _, stop := range stops {
			stop()
		}
		cancel(cause)
	}
}

// failure says why a call ended: the caller's own end comes first, then the connection's.
func (c *Conn) failure(ctx, bounded context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return asStatus(ctx.Err())
	case bounded.Err() != nil:
		return asStatus(context.Cause(bounded))
	}
	return asStatus(err)
}

// call has the server answer one request.
func (s *Server) call(ctx context.Context, request any) (any, error) {
	switch r := request.(type) {
	case *pb.TxnRequest:
		return s.Txn(ctx, r)
	case *pb.RangeRequest:
		return s.Range(ctx, r)
	case *pb.PutRequest:
		return s.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		return s.DeleteRange(ctx, r)
	case *pb.CompactionRequest:
		return s.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		return s.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		return s.LeaseRevoke(ctx, r)
	case *pb.LeaseTimeToLiveRequest:
		return s.LeaseTimeToLive(ctx, r)
	case *pb.LeaseLeasesRequest:
		return s.LeaseLeases(ctx, r)
	}
	return nil, status.Errorf(codes.Unimplemented, "%T is not implemented in memory", request)
}

// asStatus turns an error into what a gRPC client gets.
func asStatus(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return status.Error(known.Code(), known.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// unavailable is a broken connection's error.
func unavailable(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}
