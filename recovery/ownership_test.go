package recovery

import (
	"testing"
	"time"
)

var lockStates = []LockState{LockUnknown, LockFree, LockOurs, LockStale, LockForeign}

func (s LockState) String() string {
	return [...]string{"unknown", "free", "ours", "stale", "foreign"}[s]
}

func (s LockStep) String() string {
	return [...]string{"leave", "look", "take", "rebind", "keep", "wait", "unload", "release"}[s]
}

func TestEveryLockHasOneStep(t *testing.T) {
	type row struct {
		lock            LockState
		wanted, serving bool
		step            LockStep
	}
	rows := []row{
		{LockUnknown, true, true, LockTake},
		{LockUnknown, true, false, LockTake},
		{LockUnknown, false, true, LockLook},
		{LockUnknown, false, false, LockLook},
		{LockFree, true, true, LockTake},
		{LockFree, true, false, LockTake},
		{LockFree, false, true, LockLeave},
		{LockFree, false, false, LockLeave},
		{LockOurs, true, true, LockKeep},
		{LockOurs, true, false, LockKeep},
		{LockOurs, false, true, LockUnload},
		{LockOurs, false, false, LockRelease},
		{LockStale, true, true, LockRebind},
		{LockStale, true, false, LockRebind},
		{LockStale, false, true, LockRebind},
		{LockStale, false, false, LockRelease},
		{LockForeign, true, true, LockUnload},
		{LockForeign, true, false, LockWait},
		{LockForeign, false, true, LockUnload},
		{LockForeign, false, false, LockLeave},
	}
	want := map[LockFacts]row{}
	for _, r := range rows {
		want[LockFacts{r.lock, true, r.wanted, r.serving}] = r
	}
	seen := 0
	for _, s := range lockStates {
		for _, attached := range []bool{false, true} {
			for _, wanted := range []bool{false, true} {
				for _, serving := range []bool{false, true} {
					seen++
					f := LockFacts{s, attached, wanted, serving}
					step := DecideLock(f)
					w, listed := want[f]
					if !attached {
						w, listed = row{step: LockLeave}, true
					}
					if !listed || step != w.step {
						t.Errorf("%s, attached %v, wanted %v, serving %v: %s, want %s", s, attached, wanted, serving, step, w.step)
					}
					if step == LockRelease && (serving || wanted) {
						t.Errorf("%+v is released while it may be served", f)
					}
				}
			}
		}
	}
	if seen != 2*len(rows) {
		t.Errorf("walked %d of %d pairs", seen, 2*len(rows))
	}
}

func TestOnlyOurOwnWantedLockIsAGroundForLoading(t *testing.T) {
	for _, s := range lockStates {
		for _, wanted := range []bool{false, true} {
			for _, over := range []bool{false, true} {
				c := ClaimOf(s, wanted, over)
				if c.Loads() != (s == LockOurs && wanted) || c.Foreign() != (s == LockForeign) || c.Foreign() && (c == ClaimElsewhere) != over {
					t.Errorf("%s, wanted %v, window over %v: claim %d", s, wanted, over, c)
				}
			}
		}
	}
}

func TestRetriesEndWithTheWindow(t *testing.T) {
	since := time.Unix(1000, 0)
	w := RetryWindow{Every: 200 * time.Millisecond, Window: 2 * time.Second, Slow: 30 * time.Second}
	for _, c := range []struct {
		name    string
		w       RetryWindow
		elapsed time.Duration
		next    time.Duration
		over    bool
	}{
		{"at first", w, 0, 200 * time.Millisecond, false},
		{"near the end, the last attempt is at the end", w, 1900 * time.Millisecond, 2 * time.Second, false},
		{"a moment before the end", w, 1999 * time.Millisecond, 2 * time.Second, false},
		{"at the end", w, 2 * time.Second, 32 * time.Second, true},
		{"without a window", RetryWindow{Every: w.Every, Slow: w.Slow}, 0, 30 * time.Second, true},
	} {
		next, over := c.w.After(since, since.Add(c.elapsed))
		if next.Sub(since) != c.next || over != c.over {
			t.Errorf("%s: next after %v and over %v, want %v and %v", c.name, next.Sub(since), over, c.next, c.over)
		}
	}
}
