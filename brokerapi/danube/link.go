package danube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/hosts"
)

const (
	dialTimeout = time.Second            // one attempt to connect, handshake included
	redialMin   = 100 * time.Millisecond // jittered between these two
	redialMax   = 200 * time.Millisecond

	maxMessage = 8 << 20 // bytes; 100,000 topics of one broker are well below
)

// orders change something, and are answered when the work is done.
var orders = map[string]bool{"UnloadBroker": true, "ActivateBroker": true, "UnloadTopic": true}

// shared is what both links have in common.
type shared struct {
	life  context.Context // ends with the driver
	files access.Files
	token *access.Token // nil: none
}

// link is one gRPC port of the broker and the one connection to it.
type link struct {
	shared
	flag, port string // the setting, and the port that it is for
	url        *url.URL
	conn       *grpc.ClientConn

	made    atomic.Value          // time.Time: when the last connection was
	failure atomic.Pointer[error] // of the last attempt to connect
}

// newLink prepares the connection and starts to make it; it does not wait.
func newLink(s shared, flag, raw, port string) (*link, error) {
	u, err := access.ParseServer(flag, raw, port, "http", "https")
	if err != nil {
		return nil, err
	}
	l := &link{shared: s, flag: flag, port: port, url: u}
	l.conn, err = grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // dial speaks TLS
		grpc.WithContextDialer(l.dial),
		grpc.WithUnaryInterceptor(l.call),
		grpc.WithUserAgent("holdfast"),
		grpc.WithIdleTimeout(0), // held for as long as we run
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMax},
			MinConnectTimeout: dialTimeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, u, err)
	}
	l.conn.Connect()
	context.AfterFunc(s.life, func() { _ = l.conn.Close() })
	return l, nil
}

func (l *link) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := l.files.Connect(ctx, address, l.url.Scheme == "https", "h2")
	l.failure.Store(&err)
	if err == nil {
		l.made.Store(time.Now())
	}
	return conn, err
}

// since is when the connection in use was made; zero: there was none yet. The same connection
// is the same process.
func (l *link) since() time.Time {
	at, _ := l.made.Load().(time.Time)
	return at
}

// call bounds whatever is asked by the driver's life and by the time for one answer. Its errors
// name the setting; see callError.
func (l *link) call(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if l.life.Err() != nil {
		return brokerapi.ErrClosed
	}
	patience := callTimeout
	if orders[path.Base(method)] {
		patience = orderTimeout
	}
	ctx, done := brokerapi.Bounded(ctx, l.life, patience)
	defer done()
	if token := l.token.Current(); token != "" { // whether it may travel in the clear is checked with the settings
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	if err := invoke(ctx, method, request, answer, conn, options...); err != nil {
		return l.explain(ctx, path.Base(method), err)
	}
	return nil
}

// explain says in our words why a call failed. What was answered has its code by status.Code.
func (l *link) explain(ctx context.Context, method string, err error) error {
	why := hosts.Unknown(l.url.Hostname())
	if failure := l.failure.Load(); why == nil && failure != nil {
		why = *failure
	}
	s := status.Convert(err)
	if why == nil && strings.Contains(s.Message(), "remote error: tls: ") { // with TLS 1.3 it comes after our handshake
		why = &net.OpError{Op: "remote error", Err: err}
	}
	remedy := ": does it speak TLS? If not, write http:// in " + l.flag
	if l.url.Scheme == "http" {
		remedy = ": is it a Danube broker? If it speaks TLS, write https:// in " + l.flag
	}
	remedy = cmp.Or(l.files.Remedy(why), remedy)
	if brokerapi.Unseen(why) {
		why = errors.Join(brokerapi.ErrUnseen, why)
	}
	cause := context.Cause(ctx) // says which bound was hit
	if s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled && isOver(ctx) {
		cause = cmp.Or(cause, context.DeadlineExceeded)
	}
	what := fmt.Sprintf("%s %s: %s", l.flag, l.url, method)
	if cause != nil {
		return brokerapi.Errorf(errors.Join(cause, why), "%s: %v", what, cause)
	}
	what = fmt.Sprintf("%s answered %s: %.200q", what, s.Code(), l.token.Hide(s.Message()))
	switch {
	case s.Code() == codes.Unauthenticated, s.Code() == codes.PermissionDenied:
		return brokerapi.Errorf(errors.Join(brokerapi.ErrLogin, err), "%s: set --broker-token-file to a token that this broker accepts", what)
	case s.Code() == codes.Unimplemented && method != "ClusterStatus":
		return brokerapi.Errorf(brokerapi.ErrIdentity, "%s: a gRPC server answers there that is none of a Danube broker's: set %s to port %s of the broker", what, l.flag, l.port)
	case s.Code() == codes.Unavailable:
		return brokerapi.Errorf(errors.Join(why, err), "%s%s", what, remedy)
	}
	return brokerapi.Errorf(err, "%s", what)
}

// isOver says whether the time of a call is over. A broker that knows our deadline ends the
// call itself, a moment before us at times.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < 20*time.Millisecond
}
