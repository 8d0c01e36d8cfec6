package memory

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// Errors for SetFault, EndWatches and paths, as an etcd or gRPC answers them.
var (
	ErrNoSpace          = rpctypes.ErrGRPCNoSpace
	ErrNoLeader         = rpctypes.ErrGRPCNoLeader
	ErrLeaderChanged    = rpctypes.ErrGRPCLeaderChanged
	ErrTimeout          = rpctypes.ErrGRPCTimeout
	ErrPermissionDenied = rpctypes.ErrGRPCPermissionDenied
	ErrInvalidAuthToken = rpctypes.ErrGRPCInvalidAuthToken
)

// Config is how a server behaves. Its zero value is an etcd with its defaults, but for
// leases, which end exactly at their deadlines.
type Config struct {
	// Now is the clock; nil means time.Now, which a synctest bubble replaces.
	Now func() time.Time
	// MinTTL is the least TTL of a lease, in whole seconds; 0 means etcd's default, 2 s.
	MinTTL time.Duration
	// ExpiryDelay is how long after its deadline a lease still exists. etcd's is up to
	// half a second, and more under load.
	ExpiryDelay time.Duration
	// MaxTxnOps bounds the operations of a transaction; 0 means etcd's default, 128.
	MaxTxnOps int
	// ClusterID is what the cluster calls itself; 0 means 1.
	ClusterID uint64
}

// Server is one etcd. It implements etcd's KV, Lease and Watch services, which a gRPC
// server can register, or Conn calls.
type Server struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedWatchServer

	cfg Config

	mu      sync.Mutex
	store   store
	lessor  lessor
	streams []*watchStream
	term    uint64
	// leaderless is from LoseLeader to ChangeLeader.
	leaderless bool
	fault      func(method string) error
	lag        func() time.Duration
	observer   func(View, Change)

	deliveries sync.WaitGroup // of requests that paths hold back
}

// New makes an empty server. It starts nothing.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MinTTL == 0 {
		cfg.MinTTL = 2 * time.Second
	}
	if cfg.MaxTxnOps == 0 {
		cfg.MaxTxnOps = 128
	}
	if cfg.ClusterID == 0 {
		cfg.ClusterID = 1
	}
	return &Server{cfg: cfg, store: newStore(), lessor: newLessor(), term: 2}
}

// Cause says what made a revision.
type Cause string

// The causes of a change.
const (
	ByRequest Cause = "request" // put, delete or transaction
	ByRevoke  Cause = "revoke"  // the lease was revoked
	ByExpiry  Cause = "expiry"  // the lease ran out
	ByRestore Cause = "restore" // the store went back, see Rewind
)

// Change is one revision, or the end of a lease that had no keys: then Events is empty
// and Revision the current one.
type Change struct {
	Revision int64
	At       time.Time
	Cause    Cause
	// Lease is the lease that ended; 0: none did. Deadline is when it was due.
	Lease    int64
	Deadline time.Time
	Events   []Event // in the order of the writes
}

// Observe has f called after each change, with the store locked, before anyone else can
// see the change: f must not call the server, and must not keep the view. Nil ends it.
func (s *Server) Observe(f func(View, Change)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observer = f
}

// SetLag has f asked how late a watch hears of a change, and of those after it until then. Watches are
// late one by one: what one tells says nothing of what another has told. f must not call the server.
// Nil ends it.
func (s *Server) SetLag(f func() time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag = f
}

// SetFault has f asked before each request: its full method, such as
// "/etcdserverpb.KV/Txn", and each message of a stream counts as one. What it returns is
// the answer, or ends the stream, and the request does nothing. f must not call the
// server. Nil ends it.
func (s *Server) SetFault(f func(method string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// LoseLeader leaves the etcd without a leader until ChangeLeader: every request and watch
// fails with ErrNoLeader, and no lease runs out.
func (s *Server) LoseLeader() {
	s.enter()
	defer s.mu.Unlock()
	s.leaderless = true
	s.lessor.wake() // who waits for an overdue lease must ask again
	s.endWatches(ErrNoLeader)
}

// ChangeLeader does what a new leader does: every lease has its whole TTL, and extend,
// before it again, however overdue it became without a leader. An etcd's extend is its
// election timeout.
func (s *Server) ChangeLeader(extend time.Duration) {
	s.enter()
	defer s.mu.Unlock()
	s.leaderless = false
	s.term++
	s.lessor.refreshAll(s.cfg.Now(), extend)
}

// EndWatches ends all watch streams with the error, as a member does that has lost its
// leader or is shutting down.
func (s *Server) EndWatches(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWatches(err)
}

func (s *Server) endWatches(err error) {
	for _, w := range s.streams {
		w.end(err)
	}
}

// View is the store at one moment. It is valid during the call that it is given to.
type View struct{ s *Server }

// Revision is the current revision.
func (v View) Revision() int64 { return v.s.store.revision }

// Now is the server's time.
func (v View) Now() time.Time { return v.s.cfg.Now() }

// Get returns one key.
func (v View) Get(key string) (KV, bool) {
	if kv, ok := v.s.store.get([]byte(key)); ok {
		return *kv, true
	}
	return KV{}, false
}

// List returns what begins with prefix, by key.
func (v View) List(prefix string) []KV {
	var found []KV
	v.s.store.each(span{[]byte(prefix), []byte{0}}, v.s.store.revision, func(kv *KV) bool {
		if !strings.HasPrefix(kv.Key, prefix) {
			return false
		}
		found = append(found, *kv)
		return true
	})
	return found
}

// Lease is one lease. It exists from its grant until Deadline and the expiry delay.
type Lease struct {
	ID       int64
	TTL      time.Duration
	Deadline time.Time
	Keys     []string // sorted
}

// Lease returns one lease.
func (v View) Lease(id int64) (Lease, bool) {
	if l := v.s.lessor.leases[id]; l != nil {
		return l.view(), true
	}
	return Lease{}, false
}

// Leases returns all leases, by deadline, then by id.
func (v View) Leases() []Lease {
	leases := make([]Lease, 0, len(v.s.lessor.leases))
	for _, l := range slices.SortedFunc(maps.Values(v.s.lessor.leases), (*lease).before) {
		leases = append(leases, l.view())
	}
	return leases
}

// Inspect has f look at the store, with the store locked: f must not call the server.
func (s *Server) Inspect(f func(View)) {
	s.enter()
	defer s.mu.Unlock()
	f(View{s})
}

// enter locks the server and deletes what is overdue, so nobody sees that.
func (s *Server) enter() {
	s.mu.Lock()
	s.expire()
}

// begin is enter for a request, unless a fault forbids it; then nothing is locked.
func (s *Server) begin(method string) error {
	s.enter()
	var err error
	switch {
	case s.leaderless:
		err = ErrNoLeader
	case s.fault != nil:
		err = s.fault(method)
	}
	if err != nil {
		s.mu.Unlock()
	}
	return err
}

// commit ends the transaction under way and tells watchers and observer.
func (s *Server) commit(c Change) {
	c.Events = s.store.commit()
	if len(c.Events) == 0 && c.Lease == 0 {
		return
	}
	c.Revision = s.store.revision
	for _, w := range s.streams {
		w.notify(c.Revision, c.Events)
	}
	if s.observer != nil {
		c.At = s.cfg.Now()
		s.observer(View{s}, c)
	}
}

// head completes the header of an answer.
func (s *Server) head(h *pb.ResponseHeader) *pb.ResponseHeader {
	h.ClusterId, h.MemberId, h.RaftTerm = s.cfg.ClusterID, 1, s.term
	if h.Revision == 0 {
		h.Revision = s.store.revision
	}
	return h
}

// Register makes a gRPC server serve this etcd's services.
func (s *Server) Register(services grpc.ServiceRegistrar) {
	pb.RegisterKVServer(services, s)
	pb.RegisterLeaseServer(services, s)
	pb.RegisterWatchServer(services, s)
}
