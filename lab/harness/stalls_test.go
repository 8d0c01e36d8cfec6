package harness

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatIsOnTimeIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := WatchStalls()
		defer stop()
		began := time.Now()
		time.Sleep(time.Minute)
		if d := StoodStill(began, time.Now()); d != 0 {
			t.Errorf("stood still for %v while nothing was late", d)
		}
	})
}

func TestStallsCountAsFarAsTheyLieWithin(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	stalls.Lock()
	before := stalls.all
	stalls.all = []stall{{at(1), at(2)}, {at(5), at(8)}}
	stalls.Unlock()
	defer func() { stalls.Lock(); stalls.all = before; stalls.Unlock() }()
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
		if got := StoodStill(at(row.from), at(row.to)); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
	if ViolationBy(time.Second, at(6), at(8)) != "" || ViolationBy(3*time.Second, at(6), at(8)) != Violation {
		t.Error("an order of moments is known only if they differ by more than the process stood still")
	}
}
