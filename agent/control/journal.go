package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"holdfast/agent/guard"
	"holdfast/agent/process"
)

const (
	journalFile   = "journal.jsonl" // beside it, with .1, the one before
	journalEvents = 1000            // kept in memory, and read back at start
	journalBytes  = 1 << 20         // of one file; the one before is kept too
)

// Journal is the record of transitions: in memory for those who ask, and as JSON
// lines in the state directory for those who ask after a restart. A line that
// cannot be written is lost from the file only, and said once. Whoever adds an event
// does not wait for the disk: the loop must go on when that hangs.
type Journal struct {
	path  string
	lines *Lines // to the file; nil: it is only read

	mu     sync.Mutex
	events []Event
	next   int64
	wake   chan struct{} // closed and replaced with each event
}

func OpenJournal(dir string, log *slog.Logger) *Journal {
	j := &Journal{path: filepath.Join(dir, journalFile), next: 1, wake: make(chan struct{})}
	for _, path := range []string{j.path + ".1", j.path} {
		if err := j.read(path); err != nil {
			log.Warn("old journal not readable", "err", err)
		}
	}
	j.lines = NewLines(&journalLines{path: j.path, log: log}, func(n int64) {
		log.Warn("events are missing in the journal's file: the disk took none for too long", "path", j.path, "events", n)
	})
	for _, act := range guard.ActsOf(dir) { // first, with the numbers that LeftJournal gave them
		j.AddShot(act, 0)
	}
	return j
}

// after are the events after id. The caller holds the mutex.
func (j *Journal) after(id int64) []Event {
	i := len(j.events)
	for i > 0 && j.events[i-1].ID > id {
		i--
	}
	return append([]Event(nil), j.events[i:]...)
}

// read keeps the events of a file, which need not be there.
func (j *Journal) read(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*journalBytes) // what a power cut left may be one long line
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.ID < j.next {
			continue // a torn line at a crash
		}
		j.keep(e)
	}
	return nil
}

func (j *Journal) keep(e Event) {
	if len(j.events) >= journalEvents {
		j.events = append(j.events[:0], j.events[len(j.events)-journalEvents/2:]...)
	}
	j.events = append(j.events, e)
	j.next = e.ID + 1
}

// Add appends an event and gives it its number.
func (j *Journal) Add(e Event) Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.ID, e.At = j.next, time.Now().UTC()
	j.keep(e)
	close(j.wake)
	j.wake = make(chan struct{})
	raw, _ := json.Marshal(e) // texts and numbers: it cannot fail
	_, _ = j.lines.Write(append(raw, '\n'))
	return e
}

// AddShot adds what the guard did, unless that is told of already.
func (j *Journal) AddShot(act guard.Acted, epoch int64) {
	if e, news := j.shot(act, epoch); news {
		j.Add(e)
	}
}

func (j *Journal) shot(act guard.Acted, epoch int64) (e Event, news bool) {
	told, _ := j.Since(0)
	news = !slices.ContainsFunc(told, func(e Event) bool { return e.To == guard.Fired && e.DoneAt.Equal(act.At) })
	return Event{Kind: "fence", To: guard.Fired, Reason: guard.Fired, Epoch: epoch, Detail: act.String(), DoneAt: act.At}, news
}

// Since returns the events after id, and a channel that is closed when there are more.
func (j *Journal) Since(id int64) ([]Event, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.after(id), j.wake
}

// Newest is the id of the last event; 0: there was none.
func (j *Journal) Newest() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

func (j *Journal) find(id int64) (Event, bool) {
	events, _ := j.Since(id - 1)
	if len(events) > 0 && events[0].ID == id {
		return events[0], true
	}
	return Event{}, false
}

// Close waits until the last event is on the disk, or as long as is worth it.
func (j *Journal) Close() { j.lines.Close() }

// journalLines is the file of a journal.
type journalLines struct {
	path   string
	log    *slog.Logger
	file   *os.File
	size   int64
	failed bool
	torn   bool // the last line may have no end
}

// Write writes one line. What fails is said once.
func (f *journalLines) Write(line []byte) (n int, err error) {
	if f.size > journalBytes && f.file != nil {
		if err := os.Rename(f.path, f.path+".1"); err != nil {
			f.report(err)
		}
	}
	if !process.SameFile(f.file, f.path) { // it was renamed, or removed, or could not be opened
		f.file.Close()
		if f.open(); f.file == nil {
			return 0, nil
		}
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err = f.file.Write(line)
	f.size, f.torn = f.size+int64(n), err != nil
	f.report(err)
	return n, err
}

func (f *journalLines) open() {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	f.size = 0
	if err == nil {
		if info, statErr := file.Stat(); statErr == nil {
			f.size = info.Size()
		}
	}
	f.file, f.torn = file, f.size > 0
	f.report(err)
}

func (f *journalLines) report(err error) {
	if err != nil && !f.failed {
		f.log.Warn("journal not written: events are kept in memory only", "path", f.path, "err", err)
	}
	f.failed = err != nil
}
