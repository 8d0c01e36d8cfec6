package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"holdfast/agent"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/web"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/cluster/memory"
	"holdfast/probes"
)

var errDead = errors.New("this process is dead")

// node is one broker with what stands beside it.
type node struct {
	fleet  *fleet
	index  int
	id     string
	dir    string
	broker *broker
	guard  *guardian
	link   *memory.Link
	host   host

	mu       sync.Mutex
	life     *life    // nil: no sidecar runs
	ended    bool     // the last one has ended by its session policy
	files    []string // state files of the past, oldest first
	cuts     [2]int   // requests, replies
	slowness [2]time.Duration
	healed   chan struct{} // closed, and replaced, when a cut heals
}

// life is one sidecar process.
type life struct {
	node    *node
	cancel  context.CancelCauseFunc
	done    chan struct{}
	started time.Time
	frozen  gate
	dead    atomic.Bool
	leaving atomic.Bool
	stopped atomic.Bool // it has stopped its broker

	requests requests

	mu      sync.Mutex
	servers map[string]http.Handler
}

func (l *life) pass() {
	if !l.dead.Load() {
		l.frozen.pass()
	}
}

// startSidecar runs a sidecar unless one runs.
func (n *node) startSidecar() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &life{node: n, cancel: cancel, done: make(chan struct{}), started: time.Now(), servers: map[string]http.Handler{}}
	n.life, n.ended = l, false
	n.fleet.checks.sidecar(n.index, true)
	go func() {
		defer close(l.done)
		defer cancel(nil)
		err := agent.Live(ctx, n.fleet.settings.config(n.id, n.dir), n.world(l), n.fleet.log.With("node", n.id), "simulation")
		if ctx.Err() == nil {
			n.endedByItself(l, err)
		}
		n.fleet.note("%s: sidecar ended: %v", n.id, err)
	}()
}

// keepFile remembers the state file as it is now.
func (n *node) keepFile() {
	raw, err := os.ReadFile(filepath.Join(n.dir, "state.json"))
	if err != nil || !strings.Contains(string(raw), `"incarnation"`) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.files) == 0 || n.files[len(n.files)-1] != string(raw) {
		n.files = append(n.files, string(raw))
	}
}

// crashSidecar ends the process as SIGKILL does. What it had not written is lost, and
// as many of the last files too.
func (n *node) crashSidecar(back int) {
	n.keepFile()
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil || l.leaving.Swap(true) {
		return
	}
	n.mu.Lock()
	file := ""
	forgot := false
	if len(n.files) > 0 {
		forgot = back > 0 && len(n.files) > 1
		n.files = n.files[:max(1, len(n.files)-back)]
		file = n.files[len(n.files)-1]
	}
	n.mu.Unlock()
	if forgot {
		n.fleet.checks.forgot(n.index)
		n.fleet.checks.unpaused(n.index)
	}
	n.fleet.checks.sidecar(n.index, false)
	l.dead.Store(true)
	l.cancel(agent.ErrKilled)
	for l.frozen.isShut() {
		l.frozen.release()
	}
	n.buried(l)
	if file != "" {
		if err := os.WriteFile(filepath.Join(n.dir, "state.json"), []byte(file), 0o600); err != nil {
			n.fleet.checks.fail("restore the state file: %v", err)
		}
	}
	n.gone(l)
}

// stopSidecar asks the process to end.
func (n *node) stopSidecar() {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil || l.leaving.Swap(true) {
		return
	}
	n.fleet.checks.asked(n.index)
	l.cancel(errors.New("stop"))
	n.buried(l)
	n.fleet.checks.sidecar(n.index, false)
	n.keepFile()
	n.gone(l)
}

func (n *node) buried(l *life) {
	select {
	case <-l.done:
	case <-time.After(5 * time.Minute):
		n.fleet.checks.fail("the sidecar of %s does not end", n.id)
		<-l.done
	}
}

func (n *node) gone(l *life) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == l {
		n.life = nil
	}
}

func (n *node) freezeSidecar(d time.Duration) {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil || l.leaving.Load() {
		return
	}
	n.fleet.checks.unwell(n.index, 1)
	n.fleet.checks.asleep(n.index, 1)
	l.frozen.shut()
	time.Sleep(d)
	l.thaw()
	n.fleet.checks.asleep(n.index, -1)
	n.fleet.checks.unwell(n.index, -1)
}

// thaw undoes one freeze, unless the process has died meanwhile.
func (l *life) thaw() {
	if !l.dead.Load() {
		l.frozen.release()
	}
}

// world is all that one life touches.
func (n *node) world(l *life) agent.World {
	w := agent.World{
		Clock: func() lease.Instant {
			l.pass()
			return n.clock()
		},
		Clocks: func() lease.Clocks {
			l.pass()
			return n.clocks()
		},
		Broker: func(config.Config, *cluster.Client, *slog.Logger) (brokerapi.Broker, error) {
			return newDriver(n.broker, l), nil
		},
		Etcd: func(c cluster.Config, log *slog.Logger) (*cluster.Client, agent.Line, error) {
			own, one := n.ways(l, false), c
			one.Endpoints = c.Endpoints[:1] // the line itself asks the others
			return n.client(n.ways(l, true), c, log), &line{n: n, ways: own, client: n.client(own, c, log),
				renewals: n.client(own, one, log), ready: make(chan struct{})}, nil
		},
		Listen: func(s web.Listener) (web.Server, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.servers[s.Setting] = s.Handler
			return &server{addr: s.Addr, closed: make(chan struct{})}, nil
		},
		Process: func(config.Config, *slog.Logger) *probes.Process { return nil },
		Hold: func(ctx context.Context, _ config.Config, say func(probes.Held)) error {
			return n.broker.hold(ctx, l, say)
		},

		NoDirEvents: true, // who waits for the kernel holds up virtual time
	}
	if n.fleet.settings.Stop {
		w.Stopper = func(config.Config, *slog.Logger) (agent.Stopper, error) { return stopper{n, l}, nil }
		w.Guard = func(config.Config, *slog.Logger) (agent.Guard, error) { return n.openGuard(l), nil }
	}
	return w
}

// gated lets nothing out of a process that is frozen or dead, nor into it.
type gated struct {
	*memory.Conn
	life *life
}

func (g gated) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	g.life.pass()
	if g.life.dead.Load() {
		return errDead
	}
	g.life.sends(kindOf(method))
	err := g.Conn.Invoke(ctx, method, args, reply, opts...)
	g.life.pass()
	return err
}

func (g gated) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	g.life.pass()
	if g.life.dead.Load() {
		return nil, errDead
	}
	g.life.sends(kindOf(method))
	s, err := g.Conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return gatedStream{counted{s, g.life}, g.life}, nil
}

type gatedStream struct {
	grpc.ClientStream
	life *life
}

// SendMsg does not wait at the gate: who sends on the stream of all watches holds their mutex,
// and while others wait for that no time passes. To ask for a watch, or to end one, does no
// harm that the rest of a frozen process could not do.
func (g gatedStream) SendMsg(m any) error {
	if g.life.dead.Load() {
		return errDead
	}
	return g.ClientStream.SendMsg(m)
}

func (g gatedStream) RecvMsg(m any) error {
	err := g.ClientStream.RecvMsg(m)
	g.life.pass()
	return err
}

// line is the renewals' own way. It does what cluster.Line promises: another member is
// asked while an earlier question is unanswered, and at once when one says that it cannot
// answer; a fresh question makes a new connection, which tells that it is there.
type line struct {
	n      *node
	ways   *ways
	client *cluster.Client
	// renewals asks the member in use, once.
	renewals *cluster.Client

	mu    sync.Mutex
	ready chan struct{} // closed, and replaced, when a connection that was asked for is ready
}

func (l *line) KeepAlive(ctx context.Context, id int64, fresh bool) (lease.Renewal, error) {
	if fresh {
		l.ways.leave(l.ways.here())
	}
	var renewal cluster.Renewal
	var err error
	for range l.ways.conns {
		at := l.ways.here()
		renewal, err = l.renewals.KeepAlive(ctx, id)
		if err == nil || ctx.Err() != nil || !fails(err) {
			break
		}
		l.ways.leave(at)
	}
	if class := cluster.Classify(err); fresh && class != cluster.ClassUnreachable && class != cluster.ClassTimeout {
		l.tellReady() // somebody has answered on it
	}
	if errors.Is(err, cluster.ErrLeaseNotFound) {
		err = fmt.Errorf("%w: %w", lease.ErrLost, err)
	}
	return lease.Renewal(renewal), err
}

func (l *line) AwaitReconnect(ctx context.Context) error {
	l.n.mu.Lock()
	healed := l.n.healed
	l.n.mu.Unlock()
	l.mu.Lock()
	ready := l.ready
	l.mu.Unlock()
	select {
	case <-healed:
		return nil
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *line) tellReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.ready)
	l.ready = make(chan struct{})
}

func (l *line) Revoke(ctx context.Context, id int64) error { return l.client.Revoke(ctx, id) }
func (l *line) Client() *cluster.Client                    { return l.client }
func (l *line) Close() error                               { return l.client.Close() }

// server is a listener that nobody connects to: its handler is called.
type server struct {
	addr   string
	once   sync.Once
	closed chan struct{}
}

func (s *server) Addr() string { return s.addr }
func (s *server) Serve() error { <-s.closed; return nil }
func (s *server) Close() error { s.once.Do(func() { close(s.closed) }); return nil }

// ask sends a request to a server of the sidecar; ok is false if nobody answers.
func (n *node) ask(ctx context.Context, setting, method, path, body string) (*httptest.ResponseRecorder, bool) {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil || l.dead.Load() || l.frozen.isShut() {
		return nil, false
	}
	l.mu.Lock()
	h := l.servers[setting]
	l.mu.Unlock()
	if h == nil {
		return nil, false
	}
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body)))
	return answer, true
}

// ready asks as a load balancer would.
func (n *node) ready() bool {
	answer, ok := n.ask(context.Background(), "--probe-listen", http.MethodGet, "/ready", "")
	return ok && answer.Code == http.StatusOK
}

// why lists what keeps the node from being ready.
func (n *node) why() string {
	answer, ok := n.ask(context.Background(), "--probe-listen", http.MethodGet, "/readyz?verbose", "")
	if !ok {
		return "no answer"
	}
	return strings.Join(strings.Fields(answer.Body.String()), " ")
}

func (n *node) status() (control.Status, bool) {
	var s control.Status
	answer, ok := n.ask(context.Background(), "--control-socket", http.MethodGet, "/v1/status", "")
	return s, ok && json.Unmarshal(answer.Body.Bytes(), &s) == nil
}

// steer is a person at the control socket.
func (n *node) steer(verb string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, ok := n.ask(ctx, "--control-socket", http.MethodPost, "/v1/"+verb, `{"reason":"drill","timeout_seconds":2}`)
	if ok {
		n.fleet.note("%s: %s answered %d", n.id, verb, answer.Code)
	}
	if !ok || answer.Code != http.StatusOK {
		// The word may stand in the store, and this sidecar may never have heard so.
		n.fleet.checks.forgot(n.index)
	}
}
