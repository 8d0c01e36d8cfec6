package control

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"holdfast/agent/config"
	"holdfast/recovery"
)

// PauseRequest asks for a maintenance pause: recovery waits, the lease and the
// fencing stay.
type PauseRequest struct {
	Owner      string  `json:"owner"`
	Reason     string  `json:"reason"`
	ForSeconds float64 `json:"for_seconds"`
}

// PauseStatus is a pause that is in force.
type PauseStatus struct {
	Owner            string    `json:"owner"`
	Reason           string    `json:"reason"`
	Until            time.Time `json:"until"`
	RemainingSeconds float64   `json:"remaining_seconds"`
}

// PauseAnswer is what a request to pause or to resume led to.
type PauseAnswer struct {
	BrokerID string       `json:"broker_id"`
	Pause    *PauseStatus `json:"pause"`  // in force now; null: none
	Before   *PauseStatus `json:"before"` // what it replaced or ended; null: nothing
}

// Bounds in bytes of what stands in etcd and in every status.
const (
	maxReason = 200
	maxOwner  = 100
)

// Validate says what is missing or out of bounds, each in a line of its own.
func (r PauseRequest) Validate() error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	d := r.Lasts()
	switch {
	case r.ForSeconds == 0:
		add("--for: required: give how long, such as 30m, at least %s and at most 24h", recovery.MinPause)
	case d > recovery.MaxPause:
		add("--for %s: more than 24h: give at most 24h, and pause again if need be", config.FormatDuration(d))
	case d < recovery.MinPause:
		add("--for %s: less than %s: give at least that", d, recovery.MinPause)
	}
	for _, word := range []struct {
		name, text, remedy string
		most               int
	}{
		{"owner", r.Owner, "give who answers for the pause, such as a name or a ticket", maxOwner},
		{"reason", r.Reason, "give why, for those who find the broker paused", maxReason},
	} {
		switch {
		case strings.TrimSpace(word.text) == "":
			add("--%s: required: %s", word.name, word.remedy)
		case len(word.text) > word.most:
			add("--%s: %d bytes long: at most %d", word.name, len(word.text), word.most)
		case strings.ContainsFunc(word.text, unicode.IsControl):
			add("--%s: has a line break or another control character: write one line of text", word.name)
		}
	}
	return errors.Join(errs...)
}

// Lasts bounds what a number of seconds may be, so that none overflows.
func (r PauseRequest) Lasts() time.Duration {
	const beyond = 1000 * recovery.MaxPause
	return time.Duration(max(-1, min(r.ForSeconds, beyond.Seconds())) * float64(time.Second))
}

// CheckReason bounds what an operator gives as --reason.
func CheckReason(why string) error {
	if len(why) > maxReason {
		return UsageError(fmt.Errorf("--reason: %d bytes long: at most %d", len(why), maxReason))
	}
	return nil
}
