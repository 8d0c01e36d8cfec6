package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sys/unix"

	"holdfast/probes"
)

const (
	// defaultBound is the time for a stop whose context has no deadline.
	defaultBound = 10 * time.Second
	// lateBound is the time that SIGKILL gets to be proven when the time is over
	// before the stop begins.
	lateBound = 200 * time.Millisecond
	// look is the pause between two looks at what must end.
	look = 10 * time.Millisecond
)

// How a broker was stopped.
const (
	HowGone    = "had ended" // before anything was done
	HowCommand = "stop command"
	HowTerm    = "SIGTERM"
	HowKill    = "SIGKILL"
)

// ErrNotFound says that there is nothing known to stop: the pid file or the process
// name led to no process, and none was seen before. It does not prove that nothing
// serves.
var ErrNotFound = errors.New("no broker process found")

// Settings say what the broker's process is and how it is stopped. At least one of
// PIDFile, Name, Command, Child and Record is set.
type Settings struct {
	PIDFile string // with Name: the process in it must have the name
	Name    string
	Command string // split into words as a shell does, and run without one: nothing is expanded
	// Child is the child of `run -- CMD`, the leader of a process group of its own;
	// false: it does not run. It must be cheap.
	Child func() (Target, bool)
	// Record is the file of such a child, for whoever has no hand on it; see Child.
	Record string
	// Seen is the broker's process as it was known before, for a stopper in a
	// process that starts late; zero: none. Without PIDFile and Name it is the only one.
	Seen Target
	// Log is told of a stop command that failed where a signal did the work; nil: nobody.
	Log *slog.Logger
}

func (s Settings) hasChild() bool { return s.Child != nil || s.Record != "" }

// Stopper is the one way to stop the broker. It is safe for concurrent use; two
// stops at once only signal twice.
type Stopper struct {
	settings Settings
	argv     []string
	procs    finder

	refuse atomic.Pointer[func(Target) error]

	mu     sync.Mutex
	finder *probes.Finder // by pid file or name
	seen   Target         // by pid file or name; it was the broker, so as long as it lives it may serve

	searches atomic.Int32          // that have not ended
	lookup   func() ([]aim, error) // find, but in tests
}

// Refuse has the stopper leave alone what a pid file or a name led to, if f returns why
// it is not the broker: an error that wraps ErrNotFound is as if nothing was found. f must be cheap, and safe for concurrent use. It may be set late.
func (s *Stopper) Refuse(f func(Target) error) { s.refuse.Store(&f) }

func (s *Stopper) refused(t Target) error {
	if f := s.refuse.Load(); f != nil && t.Pid != 0 {
		return (*f)(t)
	}
	return nil
}

// Use has the stopper look with a Finder that others use as well.
func (s *Stopper) Use(f *probes.Finder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finder = f
}

// Clues are what the finder of another process needs.
func (s *Stopper) Clues() probes.Clues {
	s.mu.Lock()
	finder := s.finder
	s.mu.Unlock()
	return finder.Clues()
}

// NewStopper returns an error that names the setting if the stop command cannot be
// split, or nothing is set.
func NewStopper(s Settings) (*Stopper, error) {
	argv, err := shellquote.Split(s.Command)
	if err == nil && len(argv) > 0 && argv[0] == "" {
		err = errors.New("the name of the program is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("--stop-command %q: %w", s.Command, err)
	}
	if len(argv) == 0 && s.PIDFile == "" && s.Name == "" && !s.hasChild() && s.Seen == (Target{}) {
		return nil, errors.New("no way to stop the broker: set --broker-pid-file, --broker-process or --stop-command, or start the broker with 'holdfast run -- CMD'")
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	return newStopper(s, argv), nil
}

func newStopper(settings Settings, argv []string) *Stopper {
	s := &Stopper{settings: settings, argv: argv, procs: os.FindProcess, seen: settings.Seen}
	s.finder = &probes.Finder{PIDFile: settings.PIDFile, Name: settings.Name}
	s.lookup = s.find
	return s
}

// Describe says in a few words what Stop would do.
func (s *Stopper) Describe() string {
	var who, parts []string
	if s.settings.hasChild() {
		who = append(who, "the child process group")
	}
	switch pidFile, name := s.settings.PIDFile, s.settings.Name; {
	case pidFile != "" && name != "":
		who = append(who, fmt.Sprintf("process %q in pid file %s", name, pidFile))
	case pidFile != "":
		who = append(who, "the process in pid file "+pidFile)
	case name != "":
		who = append(who, fmt.Sprintf("process %q", name))
	}
	if len(s.argv) > 0 {
		parts = append(parts, "stop command "+s.argv[0])
	}
	if len(who) > 0 {
		parts = append(parts, "SIGTERM and SIGKILL to "+strings.Join(who, " and "))
	}
	return strings.Join(parts, ", then ")
}

// Check reports what would keep Stop from working, in words that name the setting:
// a stop command that is not there or not executable. It looks for no process, which
// may start later.
func (s *Stopper) Check() error {
	if len(s.argv) == 0 {
		return nil
	}
	if _, err := exec.LookPath(s.argv[0]); err != nil {
		return fmt.Errorf("--stop-command: %s: %w: give the path of a program that is there and executable", s.argv[0], cause(err))
	}
	return nil
}

// Target is the process that a stop would hit now, the child first; false: none is
// known to run. Call it from time to time: a process that was seen once is proven
// gone when it ends, and is stopped even when its pid file is gone.
func (s *Stopper) Target() (Target, bool) {
	t, found, _ := s.Find()
	return t, found
}

// Find is Target with the reason why none is known. The error wraps ErrNotFound when there
// is none; another one means that it cannot be told which one it is.
func (s *Stopper) Find() (Target, bool, error) {
	aims, err := s.find()
	for _, a := range aims {
		if !a.gone() {
			return a.Target, true, nil
		}
	}
	return Target{}, false, err
}

// aim is a process that has to end, with its group if that is the broker's own.
type aim struct {
	Target
	group bool
}

func (a aim) gone() bool {
	if a.group {
		return GroupGone(a.Target)
	}
	return a.Gone()
}

// child is that of `run -- CMD`, if it runs.
func (s *Stopper) child() (aims []aim) {
	if s.settings.Child != nil {
		if t, ok := s.settings.Child(); ok {
			aims = append(aims, aim{t, true})
		}
	}
	return aims
}

// held is what is known without a search, and lives.
func (s *Stopper) held() []aim {
	aims := s.child()
	s.mu.Lock()
	seen := s.seen
	s.mu.Unlock()
	if seen != (Target{}) && s.refused(seen) == nil {
		aims = append(aims, aim{seen, false})
	}
	return slices.DeleteFunc(aims, aim.gone)
}

// looked is what a search found.
type looked struct {
	aims []aim
	err  error
}

// maxSearches bounds the searches that hang: a process whose memory map is locked lets
// nobody read its command line.
const maxSearches = 4

// search is find beside whatever else is to be done.
func (s *Stopper) search() <-chan looked {
	found := make(chan looked, 1)
	if s.searches.Add(1) > maxSearches {
		s.searches.Add(-1)
		found <- looked{err: errors.New("look for the broker process: earlier looks still hang")}
		return found
	}
	go func() {
		defer s.searches.Add(-1)
		aims, err := s.lookup()
		found <- looked{aims, err}
	}()
	return found
}

// wait returns what was found; no search outlasts ctx.
func wait(ctx context.Context, found <-chan looked) looked {
	select {
	case l := <-found:
		return l
	case <-ctx.Done():
		return looked{err: fmt.Errorf("look for the broker process: %w", ctx.Err())}
	}
}

// find lists what has to end. An empty list with a nil error is a proof that the
// broker, as far as it was known, does not run.
func (s *Stopper) find() ([]aim, error) {
	aims := s.child()
	if s.settings.Record != "" {
		// One that has ended is in the list too: its group may live.
		t, ok, err := recorded(s.settings.Record)
		if err != nil {
			return aims, err
		}
		if ok {
			aims = append(aims, aim{t, true})
		}
	}
	if s.settings.PIDFile == "" && s.settings.Name == "" {
		if only := s.settings.Seen; only != (Target{}) {
			if s.refused(only) == nil && !only.Gone() {
				aims = append(aims, aim{only, false})
			}
			return aims, nil
		}
		if !s.settings.hasChild() && len(aims) == 0 {
			return nil, ErrNotFound // only a command
		}
		return aims, nil
	}
	s.mu.Lock()
	finder := s.finder
	s.mu.Unlock()
	v, err := finder.Find()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.seen
	if s.refused(before) != nil {
		before = Target{}
	}
	if err == nil {
		err = s.refused(v.Target)
	}
	if before != (Target{}) && !before.Gone() {
		aims = append(aims, aim{before, false})
	}
	switch {
	case err == nil:
		s.seen = v.Target
		if s.seen != before {
			aims = append(aims, aim{s.seen, false})
		}
		return aims, nil
	case errors.Is(err, probes.ErrNoProcess) || errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrNotFound):
		if before == (Target{}) && !s.settings.hasChild() {
			if errors.Is(err, ErrNotFound) {
				return aims, err
			}
			return aims, fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		return aims, nil // it ended, or lives on without its pid file and is in the list
	}
	return aims, fmt.Errorf("look for the broker process: %w", err)
}

// Stop stops the broker within the time that ctx has (10 s if it has no deadline)
// and says how. It returns nil only when each known process of the broker is proven
// gone, or, where none is known, when the stop command ended with 0.
//
// The order: the stop command, for a quarter of the time if there is a process to
// signal, else for all of it; SIGTERM; SIGKILL when half of the time is over, and at
// once when none is left. A stopped process is killed all the same. The error wraps
// ErrNotFound when nothing was known to stop.
func (s *Stopper) Stop(ctx context.Context) (how string, err error) {
	now := time.Now()
	bound := defaultBound
	if deadline, ok := ctx.Deadline(); ok {
		bound = deadline.Sub(now)
	}
	term, kill := now, now.Add(bound/2)
	if len(s.argv) > 0 {
		term = now.Add(bound / 4)
	}
	if bound <= 0 {
		bound, term, kill = lateBound, now, now
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, now.Add(bound))
	defer cancel()
	aims := s.held()
	if len(s.argv) == 0 {
		return s.signals(ctx, term, kill, nil, aims)
	}
	if len(aims) == 0 {
		aims = wait(ctx, s.search()).aims
	}
	slice := term
	if len(aims) == 0 || !term.After(now) {
		slice = now.Add(bound)
	}
	cctx, endCommand := context.WithDeadline(ctx, slice)
	command := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		command <- runCommand(cctx, s.argv)
	}()
	defer func() { endCommand(); <-ended }()
	if len(aims) > 0 {
		return s.signals(ctx, term, kill, command, aims)
	}
	commandErr := <-command
	// Whatever it did, a process that is known by now must be gone.
	late, findErr := s.find()
	if len(late) > 0 {
		if commandErr != nil {
			s.settings.Log.Warn("stop command failed: the process is signaled", "err", commandErr)
		}
		return s.signals(ctx, time.Now(), kill, nil, late)
	}
	switch {
	case findErr == nil && commandErr == nil:
		return HowCommand, nil // it was known, and is proven gone
	case findErr == nil:
		return HowGone, nil
	case commandErr != nil:
		return "", errors.Join(commandErr, findErr)
	case errors.Is(findErr, ErrNotFound):
		return HowCommand, nil
	}
	return "", findErr
}

// signals ends the processes: SIGTERM from term on, or when the command failed, SIGKILL
// from kill on. Those that are held need not wait for the search for others.
func (s *Stopper) signals(ctx context.Context, term, kill time.Time, command <-chan error, held []aim) (how string, err error) {
	var victims []*victim
	known := map[aim]bool{}
	add := func(aims []aim) {
		for _, a := range aims {
			if known[a] {
				continue
			}
			known[a] = true
			v, grabErr := s.procs.grab(a.Target, a.group)
			if grabErr != nil {
				err = errors.Join(err, grabErr)
				continue
			}
			victims = append(victims, v)
		}
	}
	defer func() {
		for _, v := range victims {
			v.close()
		}
	}()
	add(held)
	found := s.search()
	how = HowGone
	if command != nil {
		how = HowCommand
	}
	sent := map[*victim]unix.Signal{}
	for {
		alive := slices.DeleteFunc(slices.Clone(victims), (*victim).gone)
		if len(alive) == 0 && found != nil {
			l := wait(ctx, found)
			found, err = nil, errors.Join(err, l.err)
			add(l.aims)
			continue
		}
		if len(alive) == 0 {
			if len(known) == 0 && err != nil {
				return "", err
			}
			return how, err
		}
		select {
		case l := <-found:
			found, err = nil, errors.Join(err, l.err)
			add(l.aims)
			continue
		case cmdErr := <-command:
			command = nil
			if cmdErr != nil {
				s.settings.Log.Warn("stop command failed: the process is signaled", "err", cmdErr)
				term = time.Now()
			}
		default:
		}
		// To look may take all the time there is on a busy machine: then it is killed late.
		if late := errors.Is(ctx.Err(), context.DeadlineExceeded) && len(sent) == 0; ctx.Err() != nil && !late {
			return "", errors.Join(fmt.Errorf("stop the broker: %s has not ended after %s: stop it by hand: %w", alive[0].Target, how, ctx.Err()), err)
		}
		now, refused := time.Now(), error(nil)
		for _, v := range alive {
			switch {
			case !now.Before(kill):
				// Again and again: a group may have got a new member meanwhile.
				how, sent[v] = HowKill, unix.SIGKILL
			case sent[v] == 0 && !now.Before(term):
				how, sent[v] = HowTerm, unix.SIGTERM
			default:
				continue
			}
			if sendErr := v.send(sent[v]); sendErr != nil && !v.gone() {
				refused = errors.Join(refused, sendErr)
			}
		}
		if refused != nil {
			return "", errors.Join(fmt.Errorf("stop the broker: %w: run holdfast as the user of the broker or with CAP_KILL, or set --stop-command", refused), err)
		}
		alive[0].await(look)
	}
}
