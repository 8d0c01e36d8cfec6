package guard

import (
	"holdfast/agent/process"
)

// Broker says what the broker's process is and how it is stopped, in words that can be
// handed to another process. The zero Broker cannot be stopped.
type Broker struct {
	PIDFile     string `json:"pid_file,omitempty"`
	Name        string `json:"name,omitempty"`
	StopCommand string `json:"stop_command,omitempty"`
	// Record is the file of a child; see process.ChildSettings. Then the target leads a
	// process group that is the broker's own.
	Record string `json:"record,omitempty"`
}

// commandOnly reports whether no process can be looked for.
func (b Broker) commandOnly() bool { return b.PIDFile == "" && b.Name == "" && b.Record == "" }

// gone reports whether that process of the broker has ended, and what it left in a group
// of its own.
func (b Broker) gone(t process.Target) bool {
	if b.Record != "" {
		return process.GroupGone(t)
	}
	return t.Gone()
}

// stopper stops the target and nothing else. The zero Target is whatever is the broker by
// then.
func (b Broker) stopper(t process.Target) (*process.Stopper, error) {
	s := process.Settings{Command: b.StopCommand}
	switch {
	case t.Pid == 0:
		s.PIDFile, s.Name, s.Record = b.PIDFile, b.Name, b.Record
	case b.Record != "":
		s.Child = func() (process.Target, bool) { return t, true }
	default:
		s.Seen = t
	}
	return process.NewStopper(s)
}

// post is what a guard looks after.
type post struct {
	Target process.Target `json:"target"` // zero: none is known
	Broker Broker         `json:"broker"`
	Clues  process.Clues  `json:"clues"` // by which its next process is found
}
