package danube

import (
	"fmt"
	"time"

	"holdfast/brokerapi/danube/danubepb"
)

// quorumPatience is how long a broker may be without its quorum. After 32 s the others have declared
// it dead, and healed it deletes what they serve.
const quorumPatience = 20 * time.Second

// steadyAdvances is how often what was applied must have grown in time before it counts when it
// stands. Each broker writes every 10 s.
const steadyAdvances = 3

// unwatchedMost is the longest pause between two answers that counts as watched: what a broker
// was that did not answer, nobody knows.
const unwatchedMost = 5 * time.Second

// quorum is what one process of the broker showed of its quorum.
type quorum struct {
	of      time.Time // when the connection to it was made
	led     bool      // it knew a leader
	applied uint64
	grewAt  time.Time
	steady  int
	ledAt   time.Time
	seenAt  time.Time
}

// saw is called at each answer.
func (q *quorum) saw(s *danubepb.ClusterStatusResponse, connection, now time.Time) {
	if !q.of.Equal(connection) {
		*q = quorum{of: connection, applied: s.GetLastApplied(), grewAt: now}
	}
	if now.Sub(q.seenAt) > unwatchedMost {
		q.ledAt, q.grewAt = now, now
	}
	q.seenAt = now
	if s.GetLeaderId() != 0 {
		q.led, q.ledAt = true, now
	}
	if s.GetLastApplied() == q.applied {
		return
	}
	if q.applied = s.GetLastApplied(); now.Sub(q.grewAt) < quorumPatience {
		q.steady++
	} else {
		q.steady = 0
	}
	q.grewAt = now
}

// cutOff is what follows.
const cutOff = ": it is cut off from the others, and would delete their topics' data when it is not any more"

// lost says why the quorum that this process had is gone; empty: it is not, or nobody can tell.
func (q *quorum) lost() string {
	switch {
	case q.led && q.seenAt.Sub(q.ledAt) >= quorumPatience:
		return fmt.Sprintf("the broker has known no leader of its Raft cluster for %s"+cutOff, quorumPatience)
	case q.steady >= steadyAdvances && q.seenAt.Sub(q.grewAt) >= quorumPatience:
		return fmt.Sprintf("the broker has applied nothing of its Raft cluster for %s"+cutOff, quorumPatience)
	}
	return ""
}
