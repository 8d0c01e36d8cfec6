package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Errors of a lock.
var (
	errBusy    = errors.New("resource is already locked")
	errVersion = errors.New("bad version")
)

// session is the broker's one lease, and the locks below it.
type session struct {
	etcd    *clientv3.Client
	timeout time.Duration
	log     *slog.Logger

	mu    sync.Mutex
	lease clientv3.LeaseID
	locks map[string]*lock
	cut   bool // the lab has cut the broker's own way to etcd
}

// lock is one ephemeral key as its owner knows it.
type lock struct {
	s     *session
	key   string
	lost  func() // it is another's: let go of what it protects
	mu    sync.Mutex
	value []byte
	// version is etcd's version of the key when we wrote or read it last; 0: it must not exist.
	version  int64
	released bool
	leaving  bool
}

func newSession(etcd *clientv3.Client, timeout time.Duration, log *slog.Logger) *session {
	return &session{etcd: etcd, timeout: timeout, log: log, locks: map[string]*lock{}}
}

var errCut = errors.New("etcd is unreachable: cut by the lab")

func (s *session) reachable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return errCut
	}
	return nil
}

func (s *session) setCut(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

func (s *session) leaseID() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

func (s *session) open(ctx context.Context) error {
	if err := s.reachable(); err != nil {
		return err
	}
	granted, err := s.etcd.Grant(ctx, int64(s.timeout/time.Second))
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	s.mu.Lock()
	s.lease = granted.ID
	s.mu.Unlock()
	return nil
}

// run renews the lease and hears of deletions until ctx ends.
func (s *session) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { s.renew(ctx) })
	parts.Go(func() { s.hear(ctx) })
	parts.Wait()
}

// renew renews the lease, whatever becomes of it: a session ends only for a broker that has had no
// answer for five sixths of its time. It makes the next one when etcd answers again. A lease that
// etcd does not know is asked for again and again, and goes on if somebody grants it under its ID.
func (s *session) renew(ctx context.Context) {
	tick := time.NewTicker(s.timeout / 6)
	defer tick.Stop()
	answered, lost, unknown := time.Now(), false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.keepAlive(ctx)
		gone := errors.Is(err, rpctypes.ErrLeaseNotFound)
		if gone && !unknown {
			s.log.Warn("requested lease not found")
		}
		unknown = gone
		if err != nil && !gone {
			lost = time.Since(answered) >= s.timeout*5/6
			continue
		}
		answered = time.Now()
		if !lost {
			continue
		}
		if err := s.open(ctx); err != nil {
			s.log.Warn("no new session", "err", err)
			continue
		}
		lost = false
		s.log.Info("session re-established")
		for _, l := range s.all() {
			l.invalidated(ctx)
		}
	}
}

func (s *session) keepAlive(ctx context.Context) error {
	if err := s.reachable(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout/3)
	defer cancel()
	_, err := s.etcd.KeepAliveOnce(ctx, s.leaseID())
	return err
}

func (s *session) all() []*lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*lock, 0, len(s.locks))
	for _, l := range s.locks {
		list = append(list, l)
	}
	return list
}

// hear has every lock revalidated whose key was deleted, whoever did it.
func (s *session) hear(ctx context.Context) {
	var asked sync.WaitGroup
	defer asked.Wait()
	for change := range s.etcd.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithFilterPut()) {
		for _, e := range change.Events {
			s.mu.Lock()
			l := s.locks[string(e.Kv.Key)]
			s.mu.Unlock()
			if l != nil && s.reachable() == nil {
				asked.Go(func() { l.invalidated(ctx) })
			}
		}
	}
}

// acquire makes a lock, or says that it is busy.
func (s *session) acquire(ctx context.Context, key string, value []byte, lost func()) (*lock, error) {
	l := &lock{s: s, key: key, lost: lost}
	s.mu.Lock()
	if s.locks[key] != nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("%s: taken twice by the same broker", key)
	}
	s.mu.Unlock()
	if err := l.update(ctx, value); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.locks[key] = l
	s.mu.Unlock()
	return l, nil
}

// update writes another value, or the first one.
func (l *lock) update(ctx context.Context, value []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.put(ctx, value)
	if errors.Is(err, errBusy) {
		err = l.revalidate(ctx, value)
	}
	return err
}

// put writes the key at the version that is expected.
func (l *lock) put(ctx context.Context, value []byte) error {
	if err := l.s.reachable(); err != nil {
		return err
	}
	guard := clientv3.Compare(clientv3.Version(l.key), "=", l.version)
	answer, err := l.s.etcd.Txn(ctx).If(guard).
		Then(clientv3.OpPut(l.key, string(value), clientv3.WithLease(l.s.leaseID()))).Commit()
	if err != nil {
		return fmt.Errorf("put %s: %w", l.key, err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("%s: %w", l.key, errBusy)
	}
	l.version, l.value = l.version+1, value
	return nil
}

func (l *lock) drop(ctx context.Context, version int64) error {
	if err := l.s.reachable(); err != nil {
		return err
	}
	answer, err := l.s.etcd.Txn(ctx).If(clientv3.Compare(clientv3.Version(l.key), "=", version)).
		Then(clientv3.OpDelete(l.key)).Commit()
	if err != nil {
		return fmt.Errorf("delete %s: %w", l.key, err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("delete %s: %w", l.key, errVersion)
	}
	return nil
}

// revalidate is what Pulsar does about a lock that it is not sure of.
func (l *lock) revalidate(ctx context.Context, value []byte) error {
	if err := l.s.reachable(); err != nil {
		return err
	}
	answer, err := l.s.etcd.Get(ctx, l.key)
	if err != nil {
		return fmt.Errorf("read %s: %w", l.key, err)
	}
	if len(answer.Kvs) == 0 {
		l.version = 0
		return l.put(ctx, value)
	}
	kv := answer.Kvs[0]
	if kv.Lease == 0 {
		return fmt.Errorf("%s is not ephemeral: %w", l.key, errBusy)
	}
	own, same := clientv3.LeaseID(kv.Lease) == l.s.leaseID(), equal(kv.Value, value)
	switch {
	case same && own:
		l.version, l.value = kv.Version, value
		return nil
	case !same && !own:
		return fmt.Errorf("%s: %w", l.key, errBusy)
	}
	if err := l.drop(ctx, kv.Version); err != nil {
		return err
	}
	l.version = 0
	return l.put(ctx, value)
}

// invalidated revalidates after the key was deleted or the session is another.
func (l *lock) invalidated(ctx context.Context) {
	l.mu.Lock()
	if l.released || l.leaving {
		l.mu.Unlock()
		return
	}
	err := l.revalidate(ctx, l.value)
	busy := errors.Is(err, errBusy) || errors.Is(err, errVersion)
	l.released = busy
	l.mu.Unlock()
	if busy {
		l.s.forget(l)
		l.s.log.Warn("lock is another's", "key", l.key)
		if l.lost != nil {
			l.lost()
		}
	} else if err != nil {
		l.s.log.Warn("lock not revalidated, assumed to be held", "key", l.key, "err", err)
	}
}

func (s *session) forget(l *lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[l.key] == l {
		delete(s.locks, l.key)
	}
}

// release deletes the key at the version that is expected. One that failed once fails for
// ever: the key is not as it was left.
func (l *lock) release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil
	}
	l.leaving = true
	if err := l.drop(ctx, l.version); err != nil {
		return err
	}
	l.released = true
	l.s.forget(l)
	return nil
}

// equal compares values as objects, as their owner does.
func equal(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
