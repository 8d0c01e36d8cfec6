package cluster

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrChanged says that a guard of a transaction did not hold and nothing was
	// written: read again, decide again.
	ErrChanged = errors.New("changed in etcd since it was read")
	// ErrLeaseNotFound says that the lease has run out or was revoked.
	ErrLeaseNotFound error = rpctypes.ErrLeaseNotFound
	// ErrCompacted says that etcd does not remember that revision any more.
	ErrCompacted error = rpctypes.ErrCompacted
	// ErrClosed says that the client or the line was closed.
	ErrClosed = errors.New("connection closed by this side")

	// errCredentials marks files that should let us in and do not.
	errCredentials = errors.New("credentials unusable")
)

// Class sorts failures for metrics, messages and the choice of a policy.
type Class string

// The classes of failures.
const (
	ClassNone          Class = ""                // no error
	ClassUnreachable   Class = "unreachable"     // no connection, or it broke
	ClassTimeout       Class = "timeout"         // no answer in time
	ClassNoLeader      Class = "no_leader"       // a member answered, without a quorum behind it
	ClassOverloaded    Class = "overloaded"      // etcd answered that it cannot keep up
	ClassAuth          Class = "auth"            // credentials missing, wrong or not sufficient
	ClassLeaseNotFound Class = "lease_not_found" // the lease is gone
	ClassNoSpace       Class = "no_space"        // etcd takes no more writes
	ClassOther         Class = "other"           // anything else
)

// Classes lists every class of a failure, in a fixed order.
var Classes = []Class{
	ClassUnreachable, ClassTimeout, ClassNoLeader, ClassOverloaded, ClassAuth, ClassLeaseNotFound, ClassNoSpace, ClassOther,
}

// classOf holds the answers of etcd that have a class of their own, word for word: a proxy may
// change the code on the way, and the codes are no help. etcd answers most of these as
// Unavailable, InvalidArgument or FailedPrecondition, and the last ones without any.
// A timeout that etcd itself reports is not one of ours: it was reached, and could not
// commit in time, for everybody.
var classOf = map[string]Class{
	rpctypes.ErrorDesc(rpctypes.ErrLeaseNotFound):              ClassLeaseNotFound,
	rpctypes.ErrorDesc(rpctypes.ErrNoSpace):                    ClassNoSpace,
	rpctypes.ErrorDesc(rpctypes.ErrNoLeader):                   ClassNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrNotLeader):                  ClassNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrLeaderChanged):              ClassNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrTimeoutDueToLeaderFail):     ClassNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrTimeoutDueToConnectionLost): ClassNoLeader,
	rpctypes.ErrorDesc(rpctypes.ErrUnhealthy):                  ClassNoLeader,
	"raft proposal dropped":                                    ClassNoLeader, // there is no leader to propose to
	"not a primary lessor":                                     ClassNoLeader, // the leader has just stepped down
	"raft: stopped":                                            ClassUnreachable,
	rpctypes.ErrorDesc(rpctypes.ErrTimeout):                    ClassOverloaded,
	rpctypes.ErrorDesc(rpctypes.ErrTimeoutWaitAppliedIndex):    ClassOverloaded,
	rpctypes.ErrorDesc(rpctypes.ErrTooManyRequests):            ClassOverloaded,
	// A member of etcd 3.4 that sees the end of a request's time before we do.
	"context deadline exceeded": ClassTimeout,
}

// ofAccess are etcd's answers to whoever may not do what he asks.
var ofAccess = regexp.MustCompile(`^etcdserver: .*(auth|user|role|permission)`)

// Denied reports whether etcd refused what was asked because the user has no right to it.
// Asking again changes nothing, as it may with other errors of ClassAuth.
func Denied(err error) bool {
	return words(err) == rpctypes.ErrPermissionDenied.Error()
}

// Classify sorts an error of this package, or of a context it was given.
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	said := words(err)
	if class, known := classOf[said]; known {
		return class
	}
	s, answered := grpcStatus(err)
	var netErr net.Error
	switch {
	case ofAccess.MatchString(said), errors.Is(err, errCredentials):
		return ClassAuth
	case errors.Is(err, context.DeadlineExceeded):
		return ClassTimeout
	case answered:
		return classOfCode(s)
	case errors.As(err, &netErr) && netErr.Timeout():
		return ClassTimeout
	case netErr != nil:
		return ClassUnreachable
	}
	return ClassOther
}

// classOfCode sorts what is not one of etcd's own answers.
func classOfCode(s *status.Status) Class {
	holds := func(sign string) bool { return strings.Contains(s.Message(), sign) }
	switch s.Code() {
	case codes.Unavailable, codes.Canceled:
		// The caller's own cancellation arrives as context.Canceled (see cause): here
		// the server ended the request, as it does when it shuts down. gRPC flattens what a
		// handshake returned to text; the mark in it is ours.
		if holds(RefusedConnection) {
			return ClassAuth
		}
		return ClassUnreachable
	case codes.Internal:
		// gRPC's word for a connection that something between here and etcd broke in
		// the middle of an answer.
		if holds("RST_STREAM") || holds("without sending trailers") || holds("unexpected EOF") || holds("transport:") {
			return ClassUnreachable
		}
	case codes.DeadlineExceeded:
		return ClassTimeout
	case codes.ResourceExhausted:
		if !holds("larger than max") { // that one is about the request
			return ClassOverloaded
		}
	case codes.Unauthenticated, codes.PermissionDenied:
		return ClassAuth
	}
	return ClassOther
}

// grpcStatus finds a gRPC status anywhere below err, with its message as it arrived.
func grpcStatus(err error) (*status.Status, bool) {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return status.New(known.Code(), known.Error()), true
	}
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) || carrier.GRPCStatus() == nil {
		return nil, false
	}
	return carrier.GRPCStatus(), true
}

// words are what etcd says in an error; empty: it is not etcd's.
func words(err error) string {
	s, _ := grpcStatus(err)
	return s.Message()
}

// reason is why a watch was cancelled. Where etcd has a gRPC error for it, it may be only that one's
// text, code in front.
func reason(err error) error {
	s, answered := grpcStatus(err)
	i := strings.LastIndex(err.Error(), " desc = ")
	if i < 0 || answered && s.Code() != codes.FailedPrecondition {
		return err
	}
	return rpctypes.Error(status.Error(codes.Unknown, err.Error()[i+len(" desc = "):]))
}

// cause is an error of a request as one of this package's: the answers of etcd as values of
// rpctypes, the end of ctx as the context's error.
func cause(ctx context.Context, err error) error {
	// gRPC has no exported value for a connection that this side closed but the deprecated one.
	s, ok := status.FromError(err)
	if errors.Is(err, ErrClosed) || err != nil && ok && s.Code() == codes.Canceled && s.Message() == "grpc: the client connection is closing" {
		return ErrClosed
	}
	if i := strings.Index(s.Message(), RefusedConnection); i >= 0 { // what stands before it differs from time to time
		return status.Error(codes.Unavailable, strings.TrimSuffix(s.Message()[i:], `"`))
	}
	return clientv3.ContextError(ctx, err)
}

// elsewhere tells whether another endpoint may do better with the same request.
func elsewhere(err error) bool {
	s, _ := grpcStatus(err)
	return s.Message() == rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner) || // a member that is not a voter yet
		s != nil && s.Code() == codes.Unavailable
}
