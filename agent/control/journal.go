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
	"holdfast/probes"
)

const (
	journalFile   = "journal.jsonl" // beside it, with .1, the one before
	journalEvents = 1000            // kept in memory, and read back at start
	journalBytes  = 1 << 20         // of one file; the one before is kept too
	// journalClose bounds the wait for the last lines, when a disk takes none.
	journalClose = 2 * time.Second
)

// Journal is the record of transitions: in memory for those who ask, and as JSON
// lines in the state directory for those who ask after a restart. A line that
// cannot be written is lost from the file only, and said once. Whoever adds an event
// does not wait for the disk: the loop must go on when that hangs.
type Journal struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	events  []Event
	next    int64
	written int64         // the last event that the file was given
	wake    chan struct{} // closed and replaced with each event

	more, ending, ended chan struct{}
	end                 func()

	// Owned by the writer.
	file   *os.File
	size   int64
	failed bool
	torn   bool // the last line may have no end
}

func OpenJournal(dir string, log *slog.Logger) *Journal {
	j := &Journal{path: filepath.Join(dir, journalFile), log: log, next: 1, wake: make(chan struct{}),
		more: make(chan struct{}, 1), ending: make(chan struct{}), ended: make(chan struct{})}
	j.end = sync.OnceFunc(func() { close(j.ending) })
	for _, path := range []string{j.path + ".1", j.path} {
		if err := j.read(path); err != nil {
			log.Warn("old journal not readable", "err", err)
		}
	}
	j.written = j.next - 1
	go j.writer()
	for _, act := range guard.ActsOf(dir) { // first, with the numbers that LeftJournal gave them
		j.AddShot(act, 0)
	}
	return j
}

// writer brings the events to the disk. Behind one that hangs, the oldest are lost.
func (j *Journal) writer() {
	defer close(j.ended)
	j.open()
	for ending := false; !ending; {
		select {
		case <-j.more:
		case <-j.ending:
			ending = true
		}
		for _, e := range j.unwritten() {
			j.write(e)
		}
	}
	if j.file != nil {
		j.file.Close()
	}
}

// unwritten takes the events that the file lacks.
func (j *Journal) unwritten() []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	events := j.after(j.written)
	j.written = j.next - 1
	return events
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

func (j *Journal) open() {
	f, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		if info, statErr := f.Stat(); statErr == nil {
			j.size = info.Size()
		}
	}
	j.file, j.torn = f, j.size > 0
	j.report(err)
}

// Add appends an event and gives it its number.
func (j *Journal) Add(e Event) Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.ID, e.At = j.next, time.Now().UTC()
	j.keep(e)
	close(j.wake)
	j.wake = make(chan struct{})
	probes.Signal(j.more)
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

func (j *Journal) write(e Event) {
	raw, err := json.Marshal(e)
	if err != nil {
		j.report(err)
		return
	}
	if j.size > journalBytes && j.file != nil {
		j.file.Close()
		if err := os.Rename(j.path, j.path+".1"); err != nil {
			j.report(err)
		}
		j.size = 0
		j.open()
	}
	if !process.SameFile(j.file, j.path) { // it was removed, or could not be opened
		j.file.Close()
		j.size = 0
		if j.open(); j.file == nil {
			return
		}
	}
	if j.torn {
		raw = append([]byte{'\n'}, raw...)
	}
	n, err := j.file.Write(append(raw, '\n'))
	j.size, j.torn = j.size+int64(n), err != nil
	j.report(err)
}

func (j *Journal) report(err error) {
	if err != nil && !j.failed {
		j.log.Warn("journal not written: events are kept in memory only", "path", j.path, "err", err)
	}
	j.failed = err != nil
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
func (j *Journal) Close() {
	j.end()
	select {
	case <-j.ended:
	case <-time.After(journalClose):
	}
}
