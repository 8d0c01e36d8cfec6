package recovery

import _ "embed"

// Reason says why a broker is in its mode or why something was done. The same
// word stands in etcd, the log, the journal, the metrics and the tests.
type Reason string

// Reasons of a mode.
const (
	ReasonBoot                Reason = "boot"                 // first boot
	ReasonJoin                Reason = "join"                 // first boot with --join
	ReasonFirstRegistration   Reason = "first_registration"   // ran before Holdfast was installed beside it
	ReasonUnknownData         Reason = "unknown_data"         // the same, and serves what is others'
	ReasonDataMissing         Reason = "data_missing"         // its own data is gone
	ReasonFastRestart         Reason = "fast_restart"         // restarted within the TTL
	ReasonPlannedRestart      Reason = "planned_restart"      // restarted after it left on purpose
	ReasonStaleRestart        Reason = "stale_restart"        // restarted after the cluster declared it dead
	ReasonFullClusterRestart  Reason = "full_cluster_restart" // restarted with the whole cluster
	ReasonRegistrationExpired Reason = "registration_expired" // declared dead while it ran
	ReasonFleetExpired        Reason = "fleet_expired"        // the whole fleet's registrations went at once
	ReasonRestoredBackup      Reason = "restored_backup"      // etcd is older than what we remember
	ReasonCorruptState        Reason = "corrupt_state"        // our state file cannot be read
	ReasonUnreadableMode      Reason = "unreadable_mode"      // the state key in etcd cannot be read
	ReasonUnreadableRecord    Reason = "unreadable_record"    // era or member record cannot be read, and it mattered
	ReasonOperator            Reason = "operator"             // a person, without a reason of their own
)

// ByHoldfast is the author of the modes that recovery decides. Anybody else's
// drained or draining is an operator's.
const ByHoldfast = "holdfast"

// ByOperator is the author of what is asked for on the control socket.
const ByOperator = "operator"

// ModeRecord is the mode as etcd holds it, with why and by whom.
type ModeRecord struct {
	Mode   Mode
	Reason Reason
	By     string
}

// Known reports whether m is one of the three modes.
func (m Mode) Known() bool { return m == Active || m == Draining || m == Drained }

// The rows of the tables that keep the mode that was, or give none. The other rows are named
// by the reason that they give.
const (
	RowKept        Reason = "kept"              // a drain that only a person may lift
	RowSurvived    Reason = "survived"          // an outage that the registration outlived
	RowReconnected Reason = "reconnected"       // registered again by policy, with the mode we had
	RowConflict    Reason = "identity_conflict" // another incarnation is registered
)

// otherwiseTxt holds, a row a line, what would have made it another.
//
//go:embed otherwise.txt
var otherwiseTxt string

// Otherwise says, for an operator, what would have made the row that decided another one;
// empty: the row is not known here.
func Otherwise(row Reason) string { return lineOf(otherwiseTxt, string(row)) }
