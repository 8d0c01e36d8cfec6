// Package control is what is said of a sidecar and how: its status, its journal and their texts, the
// answers on the control socket, and the client that asks there, or looks at what a sidecar that does
// not answer has left. It decides nothing.
package control

import (
	"time"

	"holdfast/agent/moving"
	"holdfast/cluster"
)

// Status is one sidecar's view of itself at one moment: what `holdfast status`
// shows and what GET /v1/status answers. The field names are public and stable.
type Status struct {
	BrokerID    string `json:"broker_id"`
	Driver      string `json:"driver"`
	Incarnation string `json:"incarnation"`
	Epoch       int64  `json:"epoch"`
	Attachment  string `json:"attachment"`
	Mode        string `json:"mode"`
	Reason      string `json:"reason"`
	// Left: the broker has left on purpose, and Mode is that of its next start.
	Left bool       `json:"left,omitempty"`
	Boot BootStatus `json:"boot"`
	// Decided is the start or outage that the mode comes from; null: an operator or another
	// program set it, or nothing is decided yet.
	Decided      *DecisionStatus    `json:"decided"`
	Lease        LeaseStatus        `json:"lease"`
	Registration RegistrationStatus `json:"registration"`
	Broker       BrokerStatus       `json:"broker"`
	Topics       TopicCounts        `json:"topics"`
	// Moves are those that this broker has a part in and that are not over.
	Moves []moving.Shown `json:"moves,omitempty"`
	Ready ReadyStatus    `json:"ready"`
	Pause *PauseStatus   `json:"pause"` // null: recovery is not paused
	// Guard is the second process that stops the broker if this one cannot.
	Guard GuardStatus `json:"guard"`
	// StoppedBy says that the fence or the guard stopped the broker, while it has not come
	// up since; null: neither did.
	StoppedBy *StopStatus `json:"stopped_by,omitempty"`
	// State says whether the next sidecar will know what this one does.
	State StateStatus `json:"state"`
	// Denied are rights that etcd denies this sidecar, the youngest first.
	Denied []cluster.Denial `json:"denied,omitempty"`
	// Config says how the last reload of the settings went.
	Config ConfigStatus `json:"config"`
	// Summary is the state in one Sentence, with the next step if one is needed.
	Summary string `json:"summary"`
	// Severity is how much that matters: "ok", "info", "warning" or "critical".
	Severity string `json:"severity"`
	// Fleet is what this sidecar knows of the others without asking: with --assignment
	// rendezvous only; else see `holdfast fleet`.
	Fleet *FleetStatus `json:"fleet,omitempty"`
	// Shadow: all of this is only supposed (--shadow).
	Shadow  bool      `json:"shadow,omitempty"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"` // start of this sidecar process
	At      time.Time `json:"at"`    // when this view was taken
}

// StateStatus is about the state directory.
type StateStatus struct {
	Saved bool   `json:"saved"`
	Error string `json:"error,omitempty"` // why it is not
}

// ConfigStatus says how old the settings in force are.
type ConfigStatus struct {
	ReloadedAt *time.Time `json:"reloaded_at"` // the last reload that was taken up; null: none since the start
	// Error is why the last reload was refused: the settings from before are in force.
	// Empty: it was not.
	Error    string     `json:"error,omitempty"`
	FailedAt *time.Time `json:"failed_at,omitempty"`
}

// DecisionStatus is the start or outage that the present mode comes from: which row of the
// table decided, why that one, and what would have made it another.
type DecisionStatus struct {
	Row       string `json:"row"` // the reason that the row gives, or kept, reconnected
	Why       string `json:"why"`
	Otherwise string `json:"otherwise"`
}

// BootStatus says how the broker's present life began.
type BootStatus struct {
	Kind     string   `json:"kind"` // "first_boot", "restart" or "unknown"
	Reason   string   `json:"reason"`
	Evidence []string `json:"evidence"`
	// Past: the process that it is about does not answer now.
	Past bool `json:"past,omitempty"`
}

// LeaseStatus holds times in seconds; remaining and fence_in are negative once passed.
type LeaseStatus struct {
	ID               string  `json:"id"` // hexadecimal, as etcdctl prints it; empty: none held, as ever with --registration none
	TTLSeconds       float64 `json:"ttl_seconds"`
	RemainingSeconds float64 `json:"remaining_seconds"`
	FenceInSeconds   float64 `json:"fence_in_seconds"`
	FailureStreak    int     `json:"failure_streak"`
	FailingSeconds   float64 `json:"failing_seconds"`
	LastError        string  `json:"last_error,omitempty"`
}

// RegistrationStatus is the key under /cluster/register/ as last confirmed.
type RegistrationStatus struct {
	// ID is the broker's in the keys of etcd: that of its registration, its state and its
	// assignments. Empty: not known yet.
	ID             string `json:"id"`
	Present        bool   `json:"present"`
	Adopted        bool   `json:"adopted"`
	CreateRevision int64  `json:"create_revision"`
	// State: "held" by this sidecar, "another" one's, "unconfirmed" to be ours, "absent",
	// "unknown" because etcd is out of reach, "supposed" (--shadow), or "none": the broker's
	// own cluster keeps it (--registration none), and what else is said here means nothing.
	State string `json:"state"`
}

// GuardStatus says whether the broker's process is guarded.
type GuardStatus struct {
	State string `json:"state"`         // "off", "stands_by", "awaited", "absent", or "idle": there is no process to guard
	Pid   int    `json:"pid,omitempty"` // the broker's process that it stands by for
}

// Remark is what an operator should know of a guard that does not stand by; empty: nothing.
func (g GuardStatus) Remark() string {
	switch g.State {
	case "off", "absent":
		return "nothing stops the broker if this sidecar dies or hangs"
	case "idle":
		return "no process of the broker is guarded now"
	}
	return ""
}

// StopStatus is a stop of the broker's process by Holdfast.
type StopStatus struct {
	By  string    `json:"by"` // "guard" or "fence"
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// Sentence is who stopped the broker of that name, when and why.
func (s *StopStatus) Sentence(name string) string {
	who := "its guard"
	if s.By == "fence" {
		who = "the fence"
	}
	return name + " was stopped by " + who + " at " + s.At.UTC().Format("2006-01-02 15:04:05Z") + " (" + s.Why + ")"
}

// BrokerStatus is the broker's health verdict: "up", "down" or "unknown".
type BrokerStatus struct {
	Up        string `json:"up"`
	Version   string `json:"version"`
	LastError string `json:"last_error"`
	// Steering says how far a broker with a mode of its own has taken ours: "waiting",
	// "pending", "failing" (also of a drain that it had taken, and does not take again) or
	// "done"; absent: it has none.
	Steering string `json:"steering,omitempty"`
	// Held says why a broker that is ill keeps its registration: "all_ill", "alone" or
	// "none_known_well"; absent: it is not held.
	Held string `json:"held,omitempty"`
}

// TopicCounts counts topics. Assigned = served + missing.
type TopicCounts struct {
	Assigned    int `json:"assigned"`
	Served      int `json:"served"`
	Missing     int `json:"missing"`
	Orphan      int `json:"orphan"`
	Quarantined int `json:"quarantined"`
	Loading     int `json:"loading"`
	Elsewhere   int `json:"held_elsewhere,omitempty"` // of the missing: another broker holds the lock
	Unreadable  int `json:"unreadable,omitempty"`     // what else the broker lists: no topic here is called so
	Ignored     int `json:"ignored,omitempty"`        // keys in etcd that look like an assignment and are none
	Misspelt    int `json:"misspelt,omitempty"`       // of the assigned: a field of the record does nothing, and is nearly one that does
	// Listed: the broker has told its topics at some time; served means nothing before.
	Listed bool `json:"listed"`
}

// FleetStatus counts the brokers of the cluster, this one too.
type FleetStatus struct {
	Registered int `json:"registered"`
	Active     int `json:"active"` // of those
	// Others are those that are not both, by id; at most 50.
	Others []PeerStatus `json:"others"`
}

// PeerStatus is one broker of the cluster.
type PeerStatus struct {
	ID         string `json:"id"`
	Registered bool   `json:"registered"`
	Mode       string `json:"mode"` // empty: none is known, which reads as active
}

// ReadyStatus says whether clients may be sent here, and if not, why not.
type ReadyStatus struct {
	OK     bool     `json:"ok"`
	Causes []string `json:"causes"`
}

// TopicStatus is one line of `holdfast topics`.
type TopicStatus struct {
	Topic string `json:"topic"`
	State string `json:"state"` // served, missing, loading, orphan, quarantined, withdrawn (missing, since it is drained), held_elsewhere, foreign_owner, unreadable, ignored
	Error string `json:"error,omitempty"`
	// Supposed: it would be in this state; the broker was not touched (--shadow).
	Supposed bool `json:"supposed,omitempty"`
}

// Event is one transition in the journal.
type Event struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Kind   string    `json:"kind"` // attachment, mode, boot, broker, registration, readiness, topics, move, fence, guard, process, operator, agent, steer, shadow, config, etcd
	From   string    `json:"from,omitempty"`
	To     string    `json:"to"`
	Reason string    `json:"reason,omitempty"`
	Epoch  int64     `json:"epoch,omitempty"`
	Detail string    `json:"detail,omitempty"` // one sentence
	// Row is the row of the startup or outage table that decided, and Otherwise what would
	// have made it another; empty: the event tells of no such decision.
	Row       string `json:"row,omitempty"`
	Otherwise string `json:"otherwise,omitempty"`
	// DoneAt is when that was done which the event tells of, where it was noticed later.
	DoneAt time.Time `json:"done_at,omitzero"`
	Shadow bool      `json:"shadow,omitempty"` // it would have been so; nothing was done (--shadow)
}

// When is when what the event tells of happened, which may be before it was noted.
func (e Event) When() time.Time {
	if !e.DoneAt.IsZero() {
		return e.DoneAt
	}
	return e.At
}

// Explanation is an event with why it came and what would have avoided it.
type Explanation struct {
	Event Event  `json:"event"`
	Why   string `json:"why"`
	Avoid string `json:"avoid"`
	// Otherwise is what would have made another row decide; empty: no table decided.
	Otherwise string `json:"otherwise,omitempty"`
	Next      string `json:"next"` // what a person should do now; empty: nothing
}

// Reloaded is the answer to a reload that was taken up.
type Reloaded struct {
	BrokerID string   `json:"broker_id"`
	Changed  []string `json:"changed"` // "health-fall: 3 → 5"; empty: nothing differs
	// Found is what was tried, with what came of it, and what another source overrides.
	Found []string `json:"found,omitempty"`
}
