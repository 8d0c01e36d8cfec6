package simulation

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"holdfast/cluster"
)

// members is how many etcd has. A sidecar knows one of them, or all.
const members = 3

// ways are one life's connections, one to each member that it knows, over the node's one
// link. What goes round asks them in turn, as the main client does; what does not stays
// with one until that fails, as the renewals' line does.
type ways struct {
	conns []gated
	round bool

	mu sync.Mutex
	at int
}

// ways makes the connections of one client.
func (n *node) ways(l *life, round bool) *ways {
	w := &ways{round: round}
	known := n.fleet.members
	if !n.fleet.settings.Several {
		known = known[n.index%members:][:1]
	}
	for _, m := range known {
		w.conns = append(w.conns, gated{m.Conn(n.link), l})
	}
	return w
}

// pick is the connection for one request.
func (w *ways) pick() (gated, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.at
	if w.round {
		w.at = (at + 1) % len(w.conns)
	}
	return w.conns[at], at
}

// leave goes on to the next member, if this is the one still.
func (w *ways) leave(at int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.round && w.at == at {
		w.at = (at + 1) % len(w.conns)
	}
}

// here is the member that is asked now.
func (w *ways) here() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// fails reports whether another member may answer where this one did not.
func fails(err error) bool {
	switch cluster.Classify(err) {
	case cluster.ClassNoLeader, cluster.ClassUnreachable, cluster.ClassTimeout:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

func (w *ways) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c, at := w.pick()
	err := c.Invoke(ctx, method, args, reply, opts...)
	if err != nil && fails(err) {
		w.leave(at)
	}
	return err
}

func (w *ways) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c, _ := w.pick()
	return c.NewStream(ctx, desc, method, opts...)
}

func (w *ways) Close() error {
	for _, c := range w.conns {
		c.Close()
	}
	return nil
}

// client is a connection of this life over the node's link.
func (n *node) client(w *ways, c cluster.Config, log *slog.Logger) *cluster.Client {
	return cluster.Over(c, w, log)
}
