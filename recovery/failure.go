package recovery

import "fmt"

// Failure is the class of a failed call to etcd. The words are those of the metrics.
type Failure string

// The classes of failures.
const (
	FailureUnreachable Failure = "unreachable"
	FailureTimeout     Failure = "timeout" // ours: no answer came
	FailureNoLeader    Failure = "no_leader"
	FailureOverloaded  Failure = "overloaded" // etcd's own words
	FailureAuth        Failure = "auth"
	FailureLeaseGone   Failure = "lease_not_found"
	FailureNoSpace     Failure = "no_space"
	FailureUnproven    Failure = "unproven" // etcd renews, and no read proves it
	FailureOther       Failure = "other"
)

// Sequel is what follows a failed attempt to keep or to regain the registration.
type Sequel int

// Sequels.
const (
	// KeepTrying counts nothing: the attempt says nothing about this broker alone.
	KeepTrying Sequel = iota
	// CountAttempt goes on trying; one of the session retries is used.
	CountAttempt
	// TakeLoss: etcd said that the registration is gone. DecideOutage follows.
	TakeLoss
	// AwaitPerson goes on trying; nothing but a person will make it succeed.
	AwaitPerson
	// GiveUp stops the broker and ends the sidecar with an error.
	GiveUp
	// Rest: nothing is asked of etcd, so nothing failed.
	Rest
)

func (s Sequel) String() string {
	return [...]string{"keep_trying", "count_attempt", "take_loss", "await_person", "give_up", "rest"}[s]
}

// Reasons of a FailureVerdict that are not the class of the failure.
const (
	ReasonBrokerDown     Reason = "broker_down"
	ReasonPaused         Reason = "paused"
	ReasonModeKept       Reason = "mode_kept"
	ReasonSessionExpired Reason = "session_expired"
	ReasonRetriesUsedUp  Reason = "retries_used_up"
)

// FailureFacts is what is known when an attempt to keep or to regain the
// registration has failed.
type FailureFacts struct {
	Failure Failure
	Policy  Policy
	Limit   int // --session-retries; 0: none
	Used    int // failed attempts that counted since the loss, before this one
	// Lost: etcd said that the registration is gone, or its deadline has passed. Before
	// that a failure is a renewal's, which the lease bears.
	Lost       bool
	Mode       Mode // that we had
	BrokerDown bool
	Paused     bool
}

// FailureVerdict is what follows, with one sentence for people.
type FailureVerdict struct {
	Sequel Sequel
	Reason Reason
	Detail string
}

// JudgeFailure decides what a failure means for the session.
//
// Only silence uses up the retries (PIP-57: "after the number of retries, if still
// can't start session success, the broker still needs to be shut down"). A failure
// that etcd itself reports does not: no leader, no time and no space are everybody's,
// and stopping every broker because of them is what PIP-57 is against; wrong
// credentials are a setting, and a stopped broker does not mend it. Nor does anything
// count that comes before the deadline, while a person has paused recovery, or while
// the broker serves nothing anyway. With the policy shutdown only etcd's word counts
// (safety rule 3): until it comes, the broker is fenced and waits.
func JudgeFailure(f FailureFacts) FailureVerdict {
	word := Reason(f.Failure)
	switch {
	case f.BrokerDown:
		return FailureVerdict{Rest, ReasonBrokerDown, "the broker is down: its lease is not renewed, and no session policy applies"}
	case f.Failure == FailureLeaseGone:
		return FailureVerdict{TakeLoss, word, "etcd says that the lease is gone: the session policy decides"}
	case f.Failure == FailureAuth:
		return FailureVerdict{AwaitPerson, word, "etcd refuses this sidecar, and waits for an operator"}
	case f.Failure == FailureNoSpace:
		return FailureVerdict{AwaitPerson, word, "etcd takes no writes until an operator makes space: compact and defragment it, then 'etcdctl alarm disarm'"}
	case f.Failure == FailureNoLeader:
		return FailureVerdict{KeepTrying, word, "etcd has no leader, for nobody: it is tried again, and no retry is used up; check the quorum of etcd"}
	case f.Failure == FailureOverloaded:
		return FailureVerdict{KeepTrying, word, "etcd cannot keep up, for anybody: it is tried again, and no retry is used up; look at its disk and its load"}
	case f.Failure == FailureUnproven:
		return FailureVerdict{KeepTrying, word, "an etcd member confirms renewals and does not answer reads, or knows another leader: other members are tried, and no retry is used up; look at the disk of etcd's leader"}
	case f.Failure != FailureUnreachable && f.Failure != FailureTimeout:
		return FailureVerdict{KeepTrying, word, "etcd, or the way to it, gave an answer without a class: it is tried again, and no retry is used up; see the error"}
	case !f.Lost:
		return FailureVerdict{KeepTrying, word, "etcd is out of reach, and the lease may still hold: it is tried again at least every second"}
	case f.Paused:
		return FailureVerdict{KeepTrying, ReasonPaused, "etcd is out of reach and recovery is paused: it is tried again, and no retry is used up"}
	case f.Policy == PolicyShutdown:
		return FailureVerdict{KeepTrying, word, "etcd is out of reach, and only etcd can say that the registration is gone: the broker stays fenced until it answers"}
	case f.Policy != PolicyReconnect || f.Limit <= 0:
		return FailureVerdict{KeepTrying, word, "etcd is out of reach: it is tried again for as long as it takes"}
	case f.Mode == Drained || f.Mode == Draining:
		return FailureVerdict{KeepTrying, ReasonModeKept, fmt.Sprintf("etcd is out of reach, and the broker is %s, which only an operator may lift: no retry is used up", f.Mode)}
	case f.Used+1 >= f.Limit:
		return FailureVerdict{GiveUp, ReasonRetriesUsedUp, fmt.Sprintf("etcd did not answer (%s) in %s since the registration ran out", word, attempts(f.Used+1))}
	}
	return FailureVerdict{CountAttempt, word, fmt.Sprintf("etcd is out of reach since the registration ran out: attempt %d of %d, then the broker is stopped", f.Used+1, f.Limit)}
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}
