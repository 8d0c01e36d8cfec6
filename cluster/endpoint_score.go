package cluster

import "time"

// How often the endpoints of a line are asked, and what that costs etcd: a sidecar opens
// one short connection to each endpoint that it does not use, sends one keep-alive of a
// lease that does not exist, and closes it, every 30 s. That is one request for about
// eight renewals. 10,000 sidecars on three members are 220 connections and requests a
// second for each member, beside 830 renewals; nothing is written and no raft is involved.
const (
	probeEvery  = 30 * time.Second       // an endpoint that works, and at most one that does not
	probeFailed = 2 * time.Second        // after the first failure; doubled with each further one
	probeAll    = 500 * time.Millisecond // while no endpoint works, so that the first is found at once
)

// score is what the answers of one endpoint say about it. Connections say nothing: a
// member without a quorum accepts them, and a black hole keeps them. The zero score is
// that of an endpoint that nobody has asked.
type score struct {
	asked     time.Time     // start of the last request
	answered  time.Time     // last answer, or last failure to get one
	gap       time.Duration // between the last two of them
	good      bool          // what it was
	overtaken bool          // it has left a request unanswered that another endpoint answered
	open      bool          // a request was given up here before it was answered
	failures  int           // since the last good answer
	orphaned  bool          // the last failure was an answer: it has no leader
	latency   time.Duration // of good answers, the recent ones weighing most; 0: not measured
}

// succeed notes a good answer: from a member that has a leader. took is 0 if a connection
// had to be made first.
func (s *score) succeed(now time.Time, took time.Duration) {
	s.note(now)
	s.good, s.orphaned, s.failures = true, false, 0
	switch {
	case took <= 0:
	case s.latency == 0:
		s.latency = took
	default:
		s.latency += (took - s.latency) / 4
	}
}

// fail notes a request that was refused or not answered in time. noLeader says that the
// member answered and had no leader.
func (s *score) fail(now time.Time, noLeader bool) {
	s.note(now)
	s.good, s.orphaned = false, noLeader
	s.failures++
}

func (s *score) note(now time.Time) {
	if !s.answered.IsZero() {
		s.gap = now.Sub(s.answered)
	}
	s.answered = now
	s.overtaken, s.open = false, false
}

// up reports whether the last answer was good and is recent. An endpoint that is asked
// less often than it would be probed, because its renewals are further apart and it is the
// only one, has recent answers as long as they keep coming.
func (s *score) up(now time.Time) bool {
	return s.good && now.Sub(s.answered) <= 3*max(probeEvery, s.gap)
}

// probeIn is the time until the endpoint should be asked if nobody else asks it before,
// without jitter; not positive: now. anyUp says whether some endpoint works.
func (s *score) probeIn(now time.Time, anyUp bool) time.Duration {
	every := probeEvery
	switch {
	case s.asked.IsZero():
		return 0
	case !anyUp || s.overtaken || s.open: // is it as silent as it looks?
		every = probeAll
	case s.failures > 0:
		every = min(probeFailed<<min(s.failures-1, 8), probeEvery)
	}
	return s.asked.Add(every).Sub(now)
}

// standing sorts endpoints before anything else does; lower is better.
type standing int

const (
	works   standing = iota
	unknown          // not asked, too long ago, or not waited for
	silent           // it was overtaken
	fails
)

func (s *score) standing(now time.Time) standing {
	switch {
	case s.overtaken:
		return silent
	case s.up(now) && !s.open:
		return works
	case s.failures > 0:
		return fails
	}
	return unknown
}

// preferred reports whether s should get the next connection rather than t. Endpoints
// that work differ only if one is much quicker: all followers ask the leader, and a fleet
// that went for the last millisecond would gather there. Of those that do not work, the
// one goes first that was left alone for longest, so that all have their turn.
func (s *score) preferred(t *score, now time.Time) bool {
	a, b := s.standing(now), t.standing(now)
	switch {
	case a != b:
		return a < b
	case a == works:
		return s.latency != 0 && 2*s.latency+20*time.Millisecond < t.latency
	}
	return s.asked.Before(t.asked)
}

// choose returns the endpoint for the next connection: the best of those that are not to
// be avoided, or of all if there are no others. Ties go to the first in turn from start.
func choose(scores []score, avoid func(int) bool, start int, now time.Time) int {
	best, bestAvoided := -1, false
	for i := range scores {
		e := (start + i) % len(scores)
		avoided := avoid(e)
		if best < 0 || bestAvoided && !avoided ||
			bestAvoided == avoided && scores[e].preferred(&scores[best], now) {
			best, bestAvoided = e, avoided
		}
	}
	return best
}

// anyUp reports whether some endpoint works.
func anyUp(scores []score, now time.Time) bool {
	for i := range scores {
		if scores[i].up(now) {
			return true
		}
	}
	return false
}
