package cluster

import "time"

// remembered is for how long the last failure of an endpoint counts. Nobody asks an
// endpoint that is not in use, so what is known of it grows old.
const remembered = 5 * time.Minute

// known is what the last request to an endpoint says about it. Connections say nothing: a
// member without a quorum accepts them, and a black hole keeps them. The zero value is that
// of an endpoint that nobody has asked.
type known struct {
	asked    time.Time // start of the last request
	failed   time.Time // last failure; zero: an answer came since, or there was none
	orphaned bool      // that one was an answer: it has no leader
}

// answered notes an answer of a member that has a leader, and whether it is news.
func (k *known) answered() (news bool) {
	news = !k.failed.IsZero()
	k.failed, k.orphaned = time.Time{}, false
	return news
}

// fail notes a request that was refused or not answered in time, and whether it is news.
// noLeader says that the member answered and had no leader.
func (k *known) fail(now time.Time, noLeader bool) (news bool) {
	news = k.failed.IsZero()
	k.failed, k.orphaned = now, noLeader
	return news
}

// up reports whether no failure is known that counts.
func (k *known) up(now time.Time) bool {
	return k.failed.IsZero() || now.Sub(k.failed) > remembered
}

// choose returns the endpoint for the next connection: the first in turn from start of
// those that are up and not to be avoided. Of those that are not up, the one that was left
// alone for longest has its turn.
func choose(endpoints []known, avoid func(int) bool, start int, now time.Time) int {
	best, bestRank := -1, 0
	for i := range endpoints {
		e := (start + i) % len(endpoints)
		rank := 0
		if !endpoints[e].up(now) {
			rank = 1
		}
		if avoid(e) {
			rank += 2
		}
		if best < 0 || rank < bestRank || rank == bestRank && rank%2 == 1 && endpoints[e].asked.Before(endpoints[best].asked) {
			best, bestRank = e, rank
		}
	}
	return best
}
