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
	ClassAuth          Class = "auth"            // credentials missing, wrong or not sufficient
	ClassLeaseNotFound Class = "lease_not_found" // the lease is gone
	ClassNoSpace       Class = "no_space"        // etcd takes no more writes
	ClassOther         Class = "other"           // anything else
)

// Classes lists every class of a failure, in a fixed order.
func Classes() []Class {
	return []Class{
		ClassUnreachable, ClassTimeout, ClassNoLeader, ClassAuth,
		ClassLeaseNotFound, ClassNoSpace, ClassOther,
	}
}

// classOf holds the answers of etcd that have a class of their own. The codes are no
// help: etcd answers most of these as Unavailable, InvalidArgument or FailedPrecondition.
var classOf = []struct {
	err   error
	class Class
}{
	{rpctypes.ErrLeaseNotFound, ClassLeaseNotFound},
	{rpctypes.ErrNoSpace, ClassNoSpace},
	{rpctypes.ErrNoLeader, ClassNoLeader},
	{rpctypes.ErrNotLeader, ClassNoLeader},
	{rpctypes.ErrLeaderChanged, ClassNoLeader},
	{rpctypes.ErrTimeoutDueToLeaderFail, ClassNoLeader},
	{rpctypes.ErrTimeoutDueToConnectionLost, ClassNoLeader},
	{rpctypes.ErrUnhealthy, ClassNoLeader},
	{rpctypes.ErrTimeout, ClassTimeout},
	{rpctypes.ErrTimeoutWaitAppliedIndex, ClassTimeout},
	{rpctypes.ErrUserEmpty, ClassAuth},
	{rpctypes.ErrUserNotFound, ClassAuth},
	{rpctypes.ErrAuthFailed, ClassAuth},
	{rpctypes.ErrPermissionDenied, ClassAuth},
	{rpctypes.ErrPermissionNotGranted, ClassAuth},
	{rpctypes.ErrInvalidAuthToken, ClassAuth},
	{rpctypes.ErrInvalidAuthMgmt, ClassAuth},
	{rpctypes.ErrAuthOldRevision, ClassAuth},
	{errCredentials, ClassAuth},
}

// Classify sorts an error of this package, or of a context it was given.
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	for _, known := range classOf {
		if errors.Is(err, known.err) {
			return known.class
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return ClassTimeout
	}
	if s, ok := grpcStatus(err); ok {
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
		case codes.DeadlineExceeded:
			return ClassTimeout
		case codes.Unauthenticated, codes.PermissionDenied:
			return ClassAuth
		}
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

// grpcStatus finds a gRPC status anywhere below err. The status package's own search
// rewrites the message with the wrapping text, which is harmless here.
func grpcStatus(err error) (*status.Status, bool) {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return status.New(known.Code(), known.Error()), true
	}
	s, ok := status.FromError(err)
	return s, ok
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
	return ok && s.Code() == codes.Unavailable && !strings.Contains(s.Message(), handshakeRefused)
}
