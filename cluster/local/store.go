package local

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"holdfast/cluster/memory"
)

// Config is where the store is and what time it is.
type Config struct {
	Path string // of the file; its directory must be there
	// Clock reads the host's clocks.
	Clock func() Reading
	// BootID names the host's present boot; empty: not known, then the wall clock counts.
	BootID string
	// Ignore has a file that is there put aside: it is of another life.
	Ignore bool
}

// pastMost is how many revisions are kept for watchers that are behind.
const pastMost = 512

// saveAgain is the pause after which a save that failed is tried again.
const saveAgain = 5 * time.Second

// Store is one sidecar's store. Its methods are safe for concurrent use.
type Store struct {
	cfg   Config
	log   *slog.Logger
	mem   *memory.Server
	found bool
	doubt string

	mu       sync.Mutex
	clock    clock
	gapEnded time.Time

	changes atomic.Int64 // of the content, so far
	dirty   chan struct{}

	saving sync.Mutex // held while the file is written
	saved  int64      // changes that the file has
}

// Open reads the file, or begins with an empty store if there is none. A file that cannot be
// understood is put aside; see Doubt. Errors are of the disk.
func Open(cfg Config, log *slog.Logger) (*Store, error) {
	s := &Store{cfg: cfg, log: log, dirty: make(chan struct{}, 1), saved: -1}
	r := cfg.Clock()
	s.clock = clock{now: r.Wall.Round(0), read: r}
	server := memory.Config{Now: s.now}
	if cfg.Ignore {
		if err := s.putAside(".old"); err != nil {
			return nil, err
		}
	}
	content, at, err := s.load()
	if err != nil {
		return nil, err
	}
	if s.found && s.doubt == "" {
		if s.mem, err = memory.Restore(server, content); err == nil {
			s.clock = resume(at, r, cfg.BootID)
			s.gapEnded = time.Now()
		} else if err := s.distrust(err.Error()); err != nil {
			return nil, err
		}
	}
	if s.mem == nil {
		s.mem = memory.New(server)
	}
	s.mem.Observe(func(memory.View, memory.Change) { s.changed() })
	return s, nil
}

// Empty is a store that nobody keeps, for those who need one and must not write.
func Empty() grpc.ClientConnInterface { return memory.New(memory.Config{}).Conn(nil) }

// Found reports whether there was a file.
func (s *Store) Found() bool { return s.found }

// Doubt says what was wrong with the file that was found; empty: nothing, or there was none.
func (s *Store) Doubt() string { return s.doubt }

// Conn makes a connection to the store. What goes over it never fails for reasons of a
// network or a disk.
func (s *Store) Conn() *memory.Conn { return s.mem.Conn(nil) }

// now is the clock of the leases. The server is locked.
func (s *Store) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, _ := s.clock.at(s.cfg.Clock())
	return now
}

// Watched says that somebody watches the broker now. It must be called every few seconds:
// time without it is missed.
func (s *Store) Watched() {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.clock.gap.length
	if s.clock.watched(s.cfg.Clock()); s.clock.gap.length > before {
		s.gapEnded = time.Now()
	}
}

// Missed reports whether there is time that nobody watched and that is not settled, and when
// it ended.
func (s *Store) Missed() (until time.Time, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gapEnded, s.clock.gap.open()
}

// Settle says what the missed time was worth. same: the broker's process is still the one
// from before it, so nothing: the broker was there. Else the broker was away for some of it,
// up to the start of the process that there is now; the zero time: nobody knows when that
// was, so for all of it. Leases that this was too long for end.
func (s *Store) Settle(same bool, started time.Time) {
	s.mu.Lock()
	var age time.Duration
	if !started.IsZero() {
		age = max(1, s.clock.read.Wall.Sub(started))
	}
	forever := s.clock.settle(same, age)
	s.mu.Unlock()
	if forever {
		var all []memory.Lease
		s.mem.Inspect(func(v memory.View) { all = v.Leases() })
		for _, l := range all {
			s.mem.Revoke(l.ID)
		}
	}
	s.mem.Expire()
	s.changed()
}

// Renewed says that a lease was renewed: the file must know.
func (s *Store) Renewed() { s.changed() }

func (s *Store) changed() {
	s.changes.Add(1)
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// Run ends leases on time and saves what changes, until ctx ends; then it saves once more.
func (s *Store) Run(ctx context.Context) error {
	var expiry sync.WaitGroup
	defer expiry.Wait()
	expiry.Go(func() { _ = s.mem.Run(ctx) }) // says only that ctx has ended
	failed := false
	again := time.NewTimer(saveAgain)
	again.Stop()
	defer again.Stop()
	save := func() {
		err := s.Save()
		if err != nil {
			again.Reset(saveAgain)
		}
		switch {
		case err != nil && !failed:
			s.log.Error("store not saved: after a restart of this sidecar its last words are not known", "err", err)
		case err == nil && failed:
			s.log.Info("store saved again")
		}
		failed = err != nil
	}
	for {
		select {
		case <-ctx.Done():
			save()
			return nil
		case <-s.dirty:
			save()
		case <-again.C:
			save()
		}
	}
}

// Close returns when nothing is under way on any connection. They must be closed before.
func (s *Store) Close() { s.mem.Wait() }

// Save writes the file if it does not have all changes. After it returned nil they survive a
// power cut.
func (s *Store) Save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	has := s.changes.Load()
	if s.saved == has {
		return nil
	}
	s.mem.Forget(pastMost)
	content := s.mem.Content()
	s.mu.Lock()
	at := s.clock.stamp(s.cfg.Clock(), s.cfg.BootID)
	s.mu.Unlock()
	if err := s.write(content, at); err != nil {
		return fmt.Errorf("save %s: %w", s.cfg.Path, err)
	}
	s.saved = has
	return nil
}
