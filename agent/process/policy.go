package process

import (
	"fmt"
	"time"
)

// Policy says whether a child that ended is started again.
type Policy string

const (
	Always    Policy = "always"
	OnFailure Policy = "on-failure"
	Never     Policy = "never"
)

const (
	backoffFirst = time.Second
	backoffMost  = 30 * time.Second
	// backoffReset is the run after which a child counts as started well.
	backoffReset = 60 * time.Second
)

// Ending is how a child ended.
type Ending struct {
	Pid    int
	Known  bool // the status is; of an adopted child it is not
	Code   int  // exit status
	Signal string
	Fenced bool // it was not allowed to run: the fence ladder or the guard ended it
	Ran    time.Duration
}

// Failed is true unless the child is known to have ended with 0.
func (e Ending) Failed() bool { return !e.Known || e.Code != 0 || e.Signal != "" }

// Reason is one word for the journal and the metrics.
func (e Ending) Reason() string {
	switch {
	case e.Fenced:
		return "fenced"
	case !e.Known:
		return "status_unknown"
	case e.Signal != "":
		return "signal"
	case e.Code != 0:
		return "failed"
	}
	return "ended"
}

func (e Ending) String() string {
	how := fmt.Sprintf("ended with status %d", e.Code)
	switch {
	case !e.Known:
		how = "ended, started by an earlier sidecar, so with unknown status"
	case e.Signal != "":
		how = "ended by signal: " + e.Signal
	}
	return fmt.Sprintf("process %d %s after %v", e.Pid, how, e.Ran.Round(time.Millisecond))
}

// again decides whether the child is started again. One that was fenced did not end
// by itself, so it is, unless nothing ever is.
func (p Policy) again(e Ending) bool {
	switch p {
	case Never:
		return false
	case OnFailure:
		return e.Fenced || e.Failed()
	}
	return true
}

// backoff counts the starts that did not last.
type backoff struct{ streak int }

// after returns the pause before the next start. dice is in [0, 1): the pause is
// between half of the step and the whole step.
func (b *backoff) after(ran time.Duration, dice float64) time.Duration {
	if ran >= backoffReset {
		b.streak = 0
	}
	step := backoffMost
	if b.streak < 5 { // 1, 2, 4, 8, 16 s
		step = backoffFirst << b.streak
	}
	b.streak++
	return step/2 + time.Duration(dice*float64(step/2))
}
