// Package recognize says which process is the broker: whom the settings lead to, whether that is the one
// that answers at --broker-admin, and what was judged of it. It signals nobody.
package recognize

import (
	"fmt"
	"sync"
	"time"

	"holdfast/agent/process"
)

// Judged keeps what was judged of the process that the pid file or the process name
// leads to. It is safe for concurrent use; the zero one refuses nobody.
type Judged struct {
	mu        sync.Mutex
	answering bool // the broker answers: nobody is hit before he is judged
	target    process.Target
	since     time.Time // when it was first seen
	ended     time.Time // when its end was first seen; zero: not yet
	instance  string    // the broker process that it was judged by; empty: it was not yet
	verdict   Verdict
	why       string
	asking    bool
}

// Refuses says why a process must not be taken for the broker; nil: it may be. One that
// came up since and was not judged yet is believed only while nobody answers who could
// contradict it.
func (r *Judged) Refuses(t process.Target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case t == r.target && r.instance != "":
		if r.verdict == IsForeign {
			return errForeign(r.why)
		}
		return nil
	case r.answering:
		return fmt.Errorf("%s is not yet known to be the broker that answers", t)
	}
	return nil
}

// Foreign is why the process that was judged last is not the broker; empty: it may be.
func (r *Judged) Foreign() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdict != IsForeign {
		return ""
	}
	return r.why
}

// Gone reports whether the process that was recognized as the broker has ended, and the
// broker that it was did not answer since: then it was not that process after all.
func (r *Judged) Gone(instance string, answered time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdict != IsBroker || instance != r.instance || !r.target.Gone() {
		return false
	}
	if r.ended.IsZero() {
		r.ended = time.Now()
	}
	return !answered.After(r.ended)
}

// Begin reports whether the process is to be judged now, and notes that it is. An answer
// from before the process was seen may be another process's.
func (r *Judged) Begin(t process.Target, instance string, answered time.Time, up bool) (ask, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answering = up
	if t.Pid == 0 {
		return false, false // what was judged stays: its pid file may come back
	}
	if t != r.target {
		r.target, r.since, r.ended, r.instance, r.verdict, r.why = t, time.Now(), time.Time{}, "", Unknown, ""
		isNew = true
	}
	ask = up && instance != "" && instance != r.instance && answered.After(r.since) && !r.asking
	r.asking = r.asking || ask
	return ask, isNew
}

// Judging reports whether a judgement is under way.
func (r *Judged) Judging() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asking
}

// End notes a judgement, and reports whether it is news.
func (r *Judged) End(t process.Target, instance string, verdict Verdict, why string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if t != r.target {
		return false
	}
	news := r.instance == "" || r.verdict != verdict
	r.instance, r.verdict, r.why = instance, verdict, why
	return news
}

// Settle notes a judgement of a process that may not have been seen before.
func (r *Judged) Settle(t process.Target, instance string, verdict Verdict, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t != r.target {
		r.target, r.since, r.ended = t, time.Now(), time.Time{}
	}
	r.instance, r.verdict, r.why = instance, verdict, why
}

// Silent says that nobody answers who could contradict a process that was not judged.
func (r *Judged) Silent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answering = false
}

// errForeign says that there is no process of the broker where it was looked for.
type errForeign string

func (e errForeign) Error() string        { return string(e) }
func (e errForeign) Is(target error) bool { return target == process.ErrNotFound }
