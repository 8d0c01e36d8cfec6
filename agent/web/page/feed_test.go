package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sidecar is a source whose status and journal the test sets.
type sidecar struct {
	mu      sync.Mutex
	status  string
	asked   int
	entries []Entry
	more    chan struct{}
}

func newSidecar(entries int) *sidecar {
	s := &sidecar{status: "first", more: make(chan struct{})}
	for range entries {
		s.happens()
	}
	return s
}

func (s *sidecar) Status() ([]byte, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return fmt.Appendf(nil, "%s %d", s.status, s.asked), s.status
}

func (s *sidecar) Newest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.entries))
}

func (s *sidecar) Journal(after int64, most int) ([]Entry, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.entries)
	for i > 0 && s.entries[i-1].ID > after {
		i--
	}
	return s.entries[i:min(i+most, len(s.entries))], s.more
}

func (s *sidecar) becomes(status string) { s.mu.Lock(); defer s.mu.Unlock(); s.status = status }
func (s *sidecar) timesAsked() int       { s.mu.Lock(); defer s.mu.Unlock(); return s.asked }
func (s *sidecar) happens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := int64(len(s.entries) + 1)
	s.entries = append(s.entries, Entry{id, fmt.Appendf(nil, "entry-%d", id)})
	close(s.more)
	s.more = make(chan struct{})
}

// viewer is a client without a network: what it was told, until it leaves or takes nothing
// any more.
type viewer struct {
	leave context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	header   http.Header
	code     int
	text     string
	longest  int // of one write
	stuck    bool
	deadline time.Time
}

func (v *viewer) Header() http.Header  { return v.header }
func (v *viewer) WriteHeader(code int) { v.mu.Lock(); defer v.mu.Unlock(); v.code = code }
func (v *viewer) FlushError() error    { return nil }
func (v *viewer) SetWriteDeadline(t time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deadline = t
	return nil
}
func (v *viewer) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stuck {
		deadline := v.deadline
		v.mu.Unlock()
		time.Sleep(time.Until(deadline))
		v.mu.Lock()
		return 0, os.ErrDeadlineExceeded
	}
	v.text += string(b)
	v.longest = max(v.longest, len(b))
	return len(b), nil
}

// takes returns what came since it was last asked, when everything is quiet.
func (v *viewer) takes() string {
	synctest.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	text := v.text
	v.text = ""
	return text
}

func (v *viewer) sticks() { v.mu.Lock(); defer v.mu.Unlock(); v.stuck = true }

func (v *viewer) gone() bool {
	synctest.Wait()
	select {
	case <-v.ended:
		return true
	default:
		return false
	}
}

// show is a feed that runs in virtual time.
type show struct {
	*Feed
	*sidecar
	stop func()
	all  *sync.WaitGroup
}

// inShow runs claim with a feed over that many entries. That no goroutine is left is what
// synctest checks.
func inShow(t *testing.T, entries int, claim func(t *testing.T, s show)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		source := newSidecar(entries)
		f := NewFeed(source)
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		defer all.Wait()
		defer cancel()
		claim(t, show{f, source, cancel, &all})
	})
}

// watch opens a stream. Header is one name and value, or nothing.
func (s show) watch(target string, header ...string) *viewer {
	ctx, cancel := context.WithCancel(context.Background())
	v := &viewer{leave: cancel, ended: make(chan struct{}), header: http.Header{}, code: http.StatusOK}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if len(header) == 2 {
		r.Header.Set(header[0], header[1])
	}
	s.all.Go(func() { defer close(v.ended); defer cancel(); s.ServeHTTP(v, r) })
	return v
}

func TestNothingIsComputedWhileNobodyWatches(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		time.Sleep(time.Hour)
		if n := s.timesAsked(); n != 0 {
			t.Errorf("asked %d times before anybody came", n)
		}
		v := s.watch("/api/events")
		time.Sleep(time.Second)
		v.leave()
		time.Sleep(look)
		before := s.timesAsked()
		time.Sleep(time.Hour)
		if n := s.timesAsked(); n != before || n == 0 {
			t.Errorf("asked %d times, and %d when everybody had left", before, n)
		}
		s.becomes("second")
		if text := s.watch("/api/events").takes(); !strings.Contains(text, "data: second") || strings.Contains(text, "first") {
			t.Errorf("who comes later is told %q", text)
		}
	})
}

func TestTheStatusComesWhenItChangesAndOtherwiseEachSecond(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		v := s.watch("/api/events")
		if text := v.takes(); text != "retry: 2000\n\nevent: status\ndata: first 1\n\n" {
			t.Errorf("a stream begins with %q", text)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(v.takes(), "event: status"); n != 60 {
			t.Errorf("%d statuses in a quiet minute", n)
		}
		s.becomes("second")
		time.Sleep(look)
		if text := v.takes(); !strings.Contains(text, "data: second") {
			t.Errorf("%s after a change: %q", look, text)
		}
	})
}

func TestOneStatusIsComputedForAll(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		all := make([]*viewer, MaxStreams)
		for i := range all {
			all[i] = s.watch("/api/events")
		}
		synctest.Wait()
		for _, v := range all {
			v.takes()
		}
		before := s.timesAsked()
		time.Sleep(10 * time.Second)
		if n := s.timesAsked() - before; n > int(10*time.Second/look) {
			t.Errorf("%d viewers had it computed %d times in 10 s", MaxStreams, n)
		}
		want := all[0].takes()
		for i, v := range all[1:] {
			if text := v.takes(); text != want {
				t.Errorf("viewer %d is told %q, the first one %q", i+1, text, want)
			}
		}
	})
}

func TestTheOneTooManyIsToldToComeAgain(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		first := s.watch("/api/events")
		for range MaxStreams - 1 {
			s.watch("/api/events")
		}
		synctest.Wait()
		v := s.watch("/api/events")
		if text := v.takes(); v.code != http.StatusServiceUnavailable || v.header.Get("Retry-After") == "" || !strings.Contains(text, "64 streams are open") || !v.gone() {
			t.Errorf("%d %v %q", v.code, v.header, text)
		}
		first.leave()
		synctest.Wait()
		if v := s.watch("/api/events"); !strings.Contains(v.takes(), "event: status") {
			t.Error("no place is free after one left")
		}
	})
}

func TestAStreamBeginsWithTheStatusAndTheRecentJournal(t *testing.T) {
	inShow(t, 3*Recent, func(t *testing.T, s show) {
		text := s.watch("/api/events").takes()
		status, journal := strings.Index(text, "event: status"), strings.Index(text, "event: journal")
		if status < 0 || journal < status {
			t.Errorf("status at %d, journal at %d", status, journal)
		}
		if n := strings.Count(text, "event: journal"); n != Recent {
			t.Errorf("%d entries", n)
		}
		if want := "id: 600\nevent: journal\ndata: entry-600\n\n"; !strings.HasSuffix(text, want) {
			t.Errorf("ends with %q, want %q", text[len(text)-60:], want)
		}
	})
}

// What a client does not take is held for it, and there may be many such clients.
func TestALongJournalIsToldInPieces(t *testing.T) {
	inShow(t, 3*Recent, func(t *testing.T, s show) {
		v := s.watch("/api/events?since=0")
		if n := strings.Count(v.takes(), "event: journal"); n != 3*Recent {
			t.Errorf("%d entries", n)
		}
		if most := 2 * piece * len(event("journal", 3*Recent, []byte("entry-600"))); v.longest > most {
			t.Errorf("%d bytes at a time, want at most %d", v.longest, most)
		}
	})
}

func TestANewEntryIsToldAtOnce(t *testing.T) {
	inShow(t, 1, func(t *testing.T, s show) {
		v := s.watch("/api/events")
		v.takes()
		s.happens()
		s.happens()
		if text := v.takes(); text != "id: 2\nevent: journal\ndata: entry-2\n\nid: 3\nevent: journal\ndata: entry-3\n\n" {
			t.Errorf("%q", text)
		}
	})
}

func TestAStreamGoesOnAfterTheLastEntryThatTheClientHad(t *testing.T) {
	for _, row := range []struct {
		name, target string
		header       []string
		want         string // ids, or the code that refuses
	}{
		{"a browser comes again", "/api/events", []string{"Last-Event-ID", "3"}, "4 5"},
		{"it has all", "/api/events", []string{"Last-Event-ID", "5"}, ""},
		{"it cannot set the header", "/api/events?since=4", nil, "5"},
		{"the header counts", "/api/events?since=1", []string{"Last-Event-ID", "4"}, "5"},
		{"it wants all", "/api/events?since=0", nil, "1 2 3 4 5"},
		{"its journal was another", "/api/events", []string{"Last-Event-ID", "900"}, "1 2 3 4 5"},
		{"not a number", "/api/events", []string{"Last-Event-ID", "x"}, "400"},
		{"negative", "/api/events?since=-1", nil, "400"},
	} {
		t.Run(row.name, func(t *testing.T) {
			inShow(t, 5, func(t *testing.T, s show) {
				v := s.watch(row.target, row.header...)
				text := v.takes()
				var ids []string
				for line := range strings.Lines(text) {
					if id, ok := strings.CutPrefix(line, "id: "); ok {
						ids = append(ids, strings.TrimSpace(id))
					}
				}
				got := strings.Join(ids, " ")
				if v.code != http.StatusOK {
					got = fmt.Sprint(v.code)
				}
				if got != row.want {
					t.Errorf("got %s, want %s: %q", got, row.want, text)
				}
			})
		})
	}
}

func TestAClientThatTakesNothingIsDroppedAndHoldsUpNobody(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		slow, well := s.watch("/api/events"), s.watch("/api/events")
		slow.takes()
		well.takes()
		slow.sticks()
		time.Sleep(WriteTimeout)
		if n := strings.Count(well.takes(), "event: status"); n < 4 {
			t.Errorf("beside it, another had %d statuses in %s", n, WriteTimeout)
		}
		time.Sleep(StatusEvery)
		if !slow.gone() {
			t.Errorf("not dropped after %s", WriteTimeout+StatusEvery)
		}
		if well.gone() {
			t.Error("the other was dropped with it")
		}
	})
}

func TestAllStreamsEndWithTheFeed(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		v := s.watch("/api/events")
		v.takes()
		began := time.Now()
		s.stop()
		if !v.gone() || time.Since(began) > 0 {
			t.Errorf("gone %v, after %s", v.gone(), time.Since(began))
		}
		if late := s.watch("/api/events"); late.takes() == "" || late.code != http.StatusServiceUnavailable {
			t.Errorf("one more: %d", late.code)
		}
	})
}

func TestAStreamThatIsAlwaysTaughtMoreStillEnds(t *testing.T) {
	inShow(t, 0, func(t *testing.T, s show) {
		v := s.watch("/api/events")
		v.takes()
		ctx, cancel := context.WithCancel(context.Background())
		s.all.Go(func() {
			for ctx.Err() == nil {
				s.happens()
				time.Sleep(time.Microsecond)
			}
		})
		time.Sleep(time.Millisecond)
		s.stop()
		time.Sleep(time.Millisecond)
		if !v.gone() {
			t.Error("still there")
		}
		cancel()
	})
}
