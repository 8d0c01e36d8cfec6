package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
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
func Classes() []Class {
	return []Class{
		ClassUnreachable, ClassTimeout, ClassNoLeader, ClassOverloaded, ClassAuth,
		ClassLeaseNotFound, ClassNoSpace, ClassOther,
	}
}

// classOf holds the answers of etcd that have a class of their own. The codes are no
// help: etcd answers most of these as Unavailable, InvalidArgument or FailedPrecondition.
// A timeout that etcd itself reports is not one of ours: it was reached, and could not
// commit in time, for everybody.
var classOf = []struct {
	class Class
	errs  []error
}{
	{ClassLeaseNotFound, []error{rpctypes.ErrLeaseNotFound}},
	{ClassNoSpace, []error{rpctypes.ErrNoSpace}},
	{ClassNoLeader, []error{
		rpctypes.ErrNoLeader, rpctypes.ErrNotLeader, rpctypes.ErrLeaderChanged, rpctypes.ErrTimeoutDueToLeaderFail,
		rpctypes.ErrTimeoutDueToConnectionLost, rpctypes.ErrUnhealthy,
	}},
	{ClassOverloaded, []error{rpctypes.ErrTimeout, rpctypes.ErrTimeoutWaitAppliedIndex, rpctypes.ErrTooManyRequests}},
	{ClassAuth, []error{
		rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrUserAlreadyExist, rpctypes.ErrAuthFailed,
		rpctypes.ErrAuthNotEnabled, rpctypes.ErrAuthOldRevision, rpctypes.ErrInvalidAuthToken, rpctypes.ErrInvalidAuthMgmt,
		rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted, rpctypes.ErrGRPCPermissionNotGiven,
		rpctypes.ErrRoleEmpty, rpctypes.ErrRoleNotFound, rpctypes.ErrRoleNotGranted, rpctypes.ErrRoleAlreadyExist,
		rpctypes.ErrRootUserNotExist, rpctypes.ErrRootRoleNotExist, errCredentials,
	}},
}

// classOfUntyped holds what etcd passes on without a code (Unknown), word for word.
var classOfUntyped = map[string]Class{
	"raft proposal dropped": ClassNoLeader, // there is no leader to propose to
	"not a primary lessor":  ClassNoLeader, // the leader has just stepped down
	"raft: stopped":         ClassUnreachable,
	// A member of etcd 3.4 that sees the end of a request's time before we do.
	"context deadline exceeded": ClassTimeout,
}

// Denied reports whether etcd refused what was asked because the user has no right to it.
// Asking again changes nothing, as it may with other errors of ClassAuth.
func Denied(err error) bool {
	s, answered := grpcStatus(err)
	return errors.Is(err, rpctypes.ErrPermissionDenied) || answered && s.Message() == rpctypes.ErrorDesc(rpctypes.ErrPermissionDenied)
}

// Classify sorts an error of this package, or of a context it was given.
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	s, answered := grpcStatus(err)
	for _, known := range classOf {
		for _, e := range known.errs {
			// A proxy may change the code on the way, not the words.
			if errors.Is(err, e) || answered && s.Message() == rpctypes.ErrorDesc(e) {
				return known.class
			}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ClassTimeout
	}
	if answered {
		return classOfCode(s)
	}
	var netErr net.Error
	if errors.As(err, &netErr) {
		if netErr.Timeout() {
			return ClassTimeout
		}
		return ClassUnreachable
	}
	return ClassOther
}

// classOfCode sorts what is not one of etcd's own answers.
func classOfCode(s *status.Status) Class {
	switch s.Code() {
	case codes.Unavailable:
		// gRPC flattens what a handshake returned to text; the mark in it is ours.
		if strings.Contains(s.Message(), handshakeRefused) {
			return ClassAuth
		}
		return ClassUnreachable
	case codes.Canceled:
		// The caller's own cancellation arrives as context.Canceled (see wrap): here
		// the server ended the request, as it does when it shuts down.
		return ClassUnreachable
	case codes.Internal:
		// gRPC's word for a connection that something between here and etcd broke in
		// the middle of an answer.
		if brokenStream(s.Message()) {
			return ClassUnreachable
		}
	case codes.DeadlineExceeded:
		return ClassTimeout
	case codes.ResourceExhausted:
		if !strings.Contains(s.Message(), "larger than max") { // that one is about the request
			return ClassOverloaded
		}
	case codes.Unauthenticated, codes.PermissionDenied:
		return ClassAuth
	case codes.Unknown:
		if class, ok := classOfUntyped[s.Message()]; ok {
			return class
		}
	}
	return ClassOther
}

func brokenStream(message string) bool {
	for _, sign := range []string{"RST_STREAM", "without sending trailers", "unexpected EOF", "transport:"} {
		if strings.Contains(message, sign) {
			return true
		}
	}
	return false
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

// wrap turns an error of a request into one of this package: the verb in front, the
// answers of etcd as values of rpctypes, the end of ctx as the context's error.
func wrap(ctx context.Context, verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, cause(ctx, err))
}

func cause(ctx context.Context, err error) error {
	if errors.Is(err, ErrClosed) || isClosing(err) {
		return ErrClosed
	}
	return clientv3.ContextError(ctx, err)
}

// isClosing tells gRPC's own error for a connection that this side closed; it has no
// exported value but the deprecated one.
func isClosing(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Canceled && s.Message() == "grpc: the client connection is closing"
}

// elsewhere tells whether another endpoint may do better with the same request.
func elsewhere(err error) bool {
	s, ok := grpcStatus(err)
	switch {
	case !ok:
		return false
	case s.Message() == rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner):
		return true // a member that is not a voter yet
	}
	return s.Code() == codes.Unavailable && !strings.Contains(s.Message(), handshakeRefused)
}
