package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	// remembered is for how long the failure of an endpoint counts. Nobody asks an endpoint
	// that is not in use, so what is known of it grows old.
	remembered = 5 * time.Minute
	// halfMade is how long a connection that has not come up yet is left to do so.
	halfMade = 1500 * time.Millisecond
)

// way is one connection to one endpoint. Its last fields are guarded by the mutex of the
// members.
type way struct {
	conn    grpc.ClientConnInterface
	kv      clientv3.KV
	leases  etcdserverpb.LeaseClient
	library *clientv3.Client
	end     context.CancelFunc // closes it
	users   int                // requests in flight, which keep it open
	waits   time.Time          // since when there are any
	since   time.Time
}

// newWay puts the etcd client's parts over a connection, which the library's end ends. What is asked
// over it does not wait while the connection is refused, as the parts of that client would: it is
// asked elsewhere, or again.
func newWay(conn grpc.ClientConnInterface, library *clientv3.Client) *way {
	library.Watcher = clientv3.NewWatchFromWatchClient(&pacedWatches{etcdserverpb.NewWatchClient(conn), rate.NewLimiter(2, 3)}, library)
	return &way{
		conn:    conn,
		kv:      clientv3.NewKVFromKVClient(etcdserverpb.NewKVClient(conn), nil),
		leases:  etcdserverpb.NewLeaseClient(conn),
		library: library,
		since:   time.Now(),
	}
}

// state is that of the connection; one that is not gRPC's is always ready.
func (w *way) state() connectivity.State {
	if c, ok := w.conn.(*grpc.ClientConn); ok {
		return c.GetState()
	}
	return connectivity.Ready
}

// pacedWatches opens streams of watches no faster than etcd can bear: the etcd client opens one
// that failed again at once, and a hundred a second.
type pacedWatches struct {
	etcdserverpb.WatchClient
	pace *rate.Limiter
}

func (p *pacedWatches) Watch(ctx context.Context, opts ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	if err := p.pace.Wait(ctx); err != nil {
		return nil, err
	}
	return p.WatchClient.Watch(ctx, opts...)
}

// member is one endpoint and what its answers say about it. Connections say nothing: a member
// without a quorum accepts them, and a black hole keeps them.
type member struct {
	url    string
	way    *way      // nil: not connected
	heard  time.Time // last answer
	failed time.Time // last failure; zero: an answer came since
}

func (m *member) up(now time.Time) bool {
	return m.failed.IsZero() || now.Sub(m.failed) > remembered
}

// members is a way to etcd: one etcd client to one endpoint at a time, made when it is
// needed. It moves on when a request fails in a way that another endpoint may cure, is not
// answered in its time, or is answered by another endpoint first. What is not in use is
// closed when its last request ends, watches aside.
type members struct {
	open     func(i int) (*way, error) // touches no network
	identity *Identity
	tokens   *tokens
	log      *slog.Logger
	// patience is the time until a read is sent to another endpoint too.
	patience time.Duration
	// lenient: one answer that is late says nothing of the endpoint while others come.
	lenient bool

	mu      sync.Mutex
	all     []member
	at      int             // in use
	life    context.Context // until Close
	end     context.CancelFunc
	closing sync.WaitGroup
}

// answer is one of etcd's.
type answer interface {
	GetHeader() *etcdserverpb.ResponseHeader
}

// question is asked over one connection.
type question[A answer] func(context.Context, *way) (A, error)

// once asks one endpoint, once: what writes is never repeated.
func once[A answer](ctx context.Context, m *members, q question[A]) (A, error) {
	said, err := attempt(ctx, m, make([]bool, len(m.all)), q)
	return said, cause(ctx, err)
}

// ask asks what may be repeated: with several endpoints each is asked once at most, the next
// one when one cannot answer or leaves the question unanswered for too long. The first answer
// wins. If none comes, the error is that of an endpoint without a leader if there was one,
// because that is what is wrong with the others too, else of one that refuses us.
func ask[A answer](ctx context.Context, m *members, q question[A]) (said A, err error) {
	if len(m.all) == 1 {
		return once(ctx, m, q)
	}
	tried := make([]bool, len(m.all)) // guarded by the mutex of the members
	type outcome struct {
		said A
		err  error
	}
	var asked sync.WaitGroup
	defer asked.Wait()
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome, len(tried))
	tries, waiting := 0, 0
	next := func() {
		tries, waiting = tries+1, waiting+1
		asked.Go(func() {
			said, err := attempt(all, m, tried, q)
			outcomes <- outcome{said, err}
		})
	}
	next()
	patience := m.patience
	if end, bounded := ctx.Deadline(); bounded {
		patience = max(1, min(patience, time.Until(end)/2))
	}
	impatient := time.NewTicker(patience)
	defer impatient.Stop()
	for {
		select {
		case <-impatient.C:
			if tries < len(tried) {
				m.log.Debug("etcd is asked at another endpoint too", "unanswered_for", patience)
				next()
			}
		case o := <-outcomes:
			waiting--
			if telling(o.err) >= telling(err) {
				err = o.err
			}
			switch {
			case o.err == nil || ctx.Err() != nil || !elsewhere(o.err):
				return o.said, cause(ctx, o.err)
			case tries < len(tried):
				next()
			case waiting == 0:
				return o.said, cause(ctx, err)
			}
		}
	}
}

// telling is higher for what says more about why no endpoint answers.
func telling(err error) int {
	return slices.Index([]Class{ClassAuth, ClassNoLeader}, Classify(err))
}

// attempt asks one endpoint that was not tried yet. A token that etcd refuses is replaced: the
// request was refused before it did anything.
func attempt[A answer](ctx context.Context, m *members, tried []bool, q question[A]) (said A, err error) {
	i, w, err := m.take(tried)
	if err != nil {
		return said, err
	}
	sent := time.Now()
	for again := false; ; again = true {
		asking, token, refused := m.tokens.on(ctx, w)
		if err = refused; err == nil {
			said, err = q(asking, w)
		}
		if again || !m.tokens.refused(token, err) {
			break
		}
	}
	if err == nil && len(m.all) > 1 {
		err = m.identity.check(said.GetHeader().GetClusterId(), m.all[i].url, time.Now())
	}
	m.give(i, w, sent, err)
	return said, err
}

// take lends the connection to the endpoint in use, or to the next that was not tried.
func (m *members) take(tried []bool) (int, *way, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	i := m.at
	if w := m.all[i].way; tried[i] {
		i = m.choose(tried)
	} else if len(m.all) > 1 && w != nil && w.state() == connectivity.TransientFailure {
		// It would refuse the request: that of a write is not to be wasted.
		m.all[i].failed = now
		i = m.choose(tried)
		m.use(i)
	}
	w, err := m.connect(i)
	if err != nil {
		return 0, nil, err
	}
	tried[i] = true
	if w.users++; w.users == 1 {
		w.waits = now
	}
	return i, w, nil
}

// connect returns the connection to an endpoint. The caller holds the mutex.
func (m *members) connect(i int) (*way, error) {
	e := &m.all[i]
	if m.life.Err() != nil {
		return nil, ErrClosed
	}
	if e.way == nil {
		w, err := m.open(i)
		if err != nil {
			return nil, err
		}
		e.way, w.end = w, m.closeWithUs(w.library)
	}
	return e.way, nil
}

// closeWithUs closes it when end is called, or with the members.
func (m *members) closeWithUs(c io.Closer) (end context.CancelFunc) {
	life, end := context.WithCancel(m.life)
	m.closing.Add(1)
	context.AfterFunc(life, func() {
		defer m.closing.Done()
		_ = c.Close()
	})
	return end
}

// choose returns the endpoint to ask instead of the one in use: the first in turn that has not
// failed lately and was not tried, else the one that failed first. The caller holds the mutex.
func (m *members) choose(tried []bool) int {
	best, bestFailed, now := m.at, time.Time{}, time.Now()
	for k := 1; k < len(m.all); k++ {
		i, failed := (m.at+k)%len(m.all), time.Time{}
		if !m.all[i].up(now) {
			failed = m.all[i].failed
		}
		if !tried[i] && (best == m.at || failed.Before(bestFailed)) {
			best, bestFailed = i, failed
		}
	}
	return best
}

// use goes to an endpoint. The caller holds the mutex.
func (m *members) use(i int) {
	was := m.at
	m.at = i
	m.settle(was, m.all[was].way)
}

// move goes to another endpoint than the one in use. The caller holds the mutex.
func (m *members) move() { m.use(m.choose(make([]bool, len(m.all)))) }

// give takes a connection back, and what came of its request.
func (m *members) give(i int, w *way, sent time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w.users--
	err = rpctypes.Error(err) // by its words, whatever a proxy made of its code
	e, now, class := &m.all[i], time.Now(), Classify(err)
	s, answered := grpcStatus(err)
	switch {
	case m.life.Err() != nil:
	case class == ClassTimeout && m.lenient && e.heard.After(sent):
	case class == ClassTimeout || elsewhere(err) || answered && s.Code() == codes.Unavailable: // also without a leader, or as a learner
		m.fail(e, class, err)
		if i == m.at && (class == ClassTimeout || elsewhere(err)) {
			m.move()
		}
		if len(m.all) == 1 && class == ClassTimeout && e.way == w {
			m.replace() // the next one may lead to another member
		}
	case err == nil || answered && s.Code() != codes.Canceled: // a member with a leader answered, whatever it said
		if !e.failed.IsZero() && len(m.all) > 1 {
			m.log.Info("etcd endpoint answers again", "endpoint", e.url)
		}
		e.failed, e.heard = time.Time{}, now
		m.overtake(i, sent)
	}
	m.settle(i, w)
}

// overtake counts against all endpoints that have kept an older request waiting than the one
// which was answered here, and moves here from one of those. The caller holds the mutex.
func (m *members) overtake(i int, sent time.Time) {
	if m.all[m.at].way == nil {
		m.use(i)
	}
	for k := range m.all {
		old := &m.all[k]
		if w := old.way; k != i && w != nil && w.users > 0 && w.waits.Before(sent) && !(m.lenient && old.heard.After(w.waits)) {
			m.fail(old, ClassTimeout, errors.New("another endpoint answered first"))
			if k == m.at {
				m.use(i)
			}
		}
	}
}

// fail notes a failure, and says so if it is news. The caller holds the mutex.
func (m *members) fail(e *member, class Class, err error) {
	news := e.failed.IsZero()
	e.failed = time.Now()
	if !news || len(m.all) == 1 { // of one, the renewals tell
		return
	}
	saying := "etcd endpoint does not answer"
	if class == ClassAuth {
		saying = "etcd endpoint refuses us: the others are asked"
	}
	m.log.Warn(saying, "endpoint", e.url, "class", string(class), "err", cause(m.life, err))
}

// avoid has the next request take another way: its endpoint answers, and what it says is not
// proven, or does not answer.
func (m *members) avoid() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.move(); len(m.all) == 1 {
		m.replace()
	}
}

// replace has the next request make a new connection to the endpoint in use, unless the one that
// there is has just begun to come up: starting over would throw away what a slow path has already
// answered. The caller holds the mutex.
func (m *members) replace() {
	if w := m.all[m.at].way; w != nil && (w.state() == connectivity.Ready || time.Since(w.since) >= halfMade) {
		m.all[m.at].way = nil
		m.settle(m.at, w)
	}
}

// settle closes a connection to an endpoint that is neither in use nor used; nil: there is none. The
// caller holds the mutex.
func (m *members) settle(i int, w *way) {
	e := &m.all[i]
	if w == nil || w.users > 0 || i == m.at && w == e.way {
		return
	}
	if w.end(); w == e.way {
		e.way = nil
	}
}

// current is the connection in use. It is made if there is none.
func (m *members) current() (*way, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connect(m.at)
}

// Close ends the connections and waits for their end.
func (m *members) Close() error {
	m.mu.Lock()
	m.end()
	m.mu.Unlock()
	m.closing.Wait()
	return nil
}

// awaitReady returns nil at the moment that the connection in use becomes ready; see
// Line.AwaitReconnect.
func (m *members) awaitReady(ctx context.Context) error {
	for first := true; ; {
		w, err := m.current()
		if err != nil {
			return err
		}
		c, ok := w.conn.(*grpc.ClientConn)
		if !ok {
			<-ctx.Done()
			return ctx.Err()
		}
		for state := c.GetState(); state != connectivity.Shutdown; state = c.GetState() {
			if state == connectivity.Ready && !first {
				return nil
			}
			first = false
			c.Connect()
			if !c.WaitForStateChange(ctx, state) {
				return ctx.Err()
			}
		}
	}
}

// otherClusterAfter is how long nobody of the known cluster must have answered before
// another one is believed: etcd restored from a backup is another cluster.
const otherClusterAfter = 2 * time.Minute

// Identity is the cluster that the endpoints of a configuration belong to: that of the
// first answer. An endpoint of another cluster knows nothing of our leases and keys, and
// says so; its answers are refused as if it were out of reach. With one endpoint there is
// nothing to compare, and whatever it answers counts. The zero value is ready to use, and
// safe for concurrent use.
//
// Not guaranteed: that the first answer comes from the right cluster (`holdfast check`
// compares all endpoints), nor that a write which is answered by another cluster did
// nothing there.
type Identity struct {
	mu   sync.Mutex
	id   uint64 // 0: nobody has answered
	last time.Time
}

// check takes an answer of the cluster id from an endpoint; an error says that it must
// not be believed.
func (i *Identity) check(id uint64, from string, now time.Time) error {
	if id == 0 {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.id != 0 && id != i.id && now.Sub(i.last) < otherClusterAfter {
		return status.Errorf(codes.Unavailable, "the etcd at %s is of cluster %x, and other endpoints are of cluster %x: take what does not belong there out of the etcd endpoints", from, id, i.id)
	}
	i.id, i.last = id, now
	return nil
}
