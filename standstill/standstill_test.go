package standstill

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatIsOnTimeIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop, again := Watch(), Watch()
		began := time.Now()
		time.Sleep(time.Minute)
		stop()
		time.Sleep(time.Minute)
		if d := For(began, time.Now()); d != 0 {
			t.Errorf("stood still for %v while nothing was late", d)
		}
		again()
	})
}

func at(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }

// stood has the process watched from second 0 on, and late in these spans of seconds.
func stood(t *testing.T, spans ...[2]float64) {
	watched.Lock()
	defer watched.Unlock()
	before, since := watched.late, watched.since
	watched.watchers++
	watched.since, watched.late = at(0), nil
	for _, s := range spans {
		watched.late = append(watched.late, span{at(s[0]), at(s[1])})
	}
	t.Cleanup(func() {
		watched.Lock()
		defer watched.Unlock()
		watched.watchers--
		watched.since, watched.late = since, before
	})
}

func TestAStandstillCountsAsFarAsItLiesWithin(t *testing.T) {
	stood(t, [2]float64{1, 2}, [2]float64{5, 8})
	for _, row := range []struct {
		name     string
		from, to float64
		want     time.Duration
	}{
		{"all", 0, 10, 4 * time.Second},
		{"between", 3, 4, 0},
		{"its end", 6, 10, 2 * time.Second},
		{"its beginning", 4, 6, time.Second},
		{"its middle", 6, 7, time.Second},
	} {
		if got := For(at(row.from), at(row.to)); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}

func TestAClaimIsUnjudgedOnlyWhereTheMachineMayHaveBrokenIt(t *testing.T) {
	stood(t, [2]float64{10, 11})
	for _, row := range []struct {
		name              string
		began, took, most float64
		want              string // begins the error
	}{
		{"held", 0, 2, 2, ""},
		{"held although it stood still", 9, 2, 2, ""},
		{"broken, and nothing stood still", 0, 2.1, 2, "stopped after 2.1s, want at most 2s"},
		{"broken by no more than three processes may have stood still", 9, 4, 1, "UNJUDGED: stopped after 4s: stood still for 1s of the 1s that the claim allows"},
		{"broken by more", 9, 4.1, 1, "stopped after 4.1s, want at most 1s"},
		{"not watched from its beginning on", -1, 1, 2, "stopped: nobody watched"},
	} {
		took, most := at(row.took).Sub(at(0)), at(row.most).Sub(at(0))
		err := Judge("stopped", at(row.began), at(row.began).Add(took), took, most)
		if (err == nil) != (row.want == "") || err != nil && !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
}

func TestAnOrderIsUnjudgedOnlyWhereTheFirstMayHaveBeenSeenTooLate(t *testing.T) {
	stood(t, [2]float64{6, 8})
	for _, row := range []struct {
		name     string
		at, gone float64
		unjudged bool
		ok       bool
	}{
		{"in order", 6, 7, false, true},
		{"seen late by less than it stood still", 8, 6.5, true, false},
		{"seen late by more", 9, 6.5, false, false},
		{"at once", 3, 3, false, false},
		{"late while nothing stood still", 3, 2, false, false},
	} {
		err := JudgeOrder("it ended", at(row.at), "its key was gone", at(row.gone))
		if (err == nil) != row.ok || errors.Is(err, ErrUnjudged) != row.unjudged {
			t.Errorf("%s: %v, want unjudged %v", row.name, err, row.unjudged)
		}
	}
}
