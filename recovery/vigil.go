package recovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Life is what is known of whether a peer lived on while we were not registered.
type Life int

// What is known of the peers' life.
const (
	// Unwatched: their leases were not looked at twice yet.
	Unwatched Life = iota
	// Alive: the lease of a peer was seen to rise.
	Alive
	// Lingering: what stood there only ran out.
	Lingering
	// Hidden: by a record that cannot be read.
	Hidden
)

// Sighting is one answer about the lease of a peer's registration.
type Sighting struct {
	Peer  string
	Lease int64
	// Asked and Answered are the moments around it, by a clock that stands while the host is
	// suspended, as etcd's does.
	Asked, Answered time.Duration
	Left            time.Duration // until the lease ends, rounded down to the second
	Granted         time.Duration // what it has after a renewal; 0: not known
	// Unknown: etcd did not say when the lease ends.
	Unknown bool
	// Refused: etcd does not let us ask; why, in words for an operator. Empty: it does.
	Refused string
	// Unread says which record of the peer cannot be read, that would tell whether it counts;
	// empty: none is needed, or it can.
	Unread string
}

// Vigil tells peers that live from registrations that only linger until their lease ends. A
// lease that is renewed rises: between two looks it sinks by less than half of the time that
// passed, if at all, and is near what was granted. So does every lease when a raft leader is
// elected, so only looks within one term count.
//
// Not guaranteed: that an etcd of one member which stood still for half of the time between
// two looks, as a paused machine does, is told from peers that renew, if they had renewed just
// before. Nor that a peer is seen to live where leaders are elected all the while, each sooner
// than one renewal after the one before.
type Vigil struct {
	term    uint64
	looks   map[int64]Sighting // the last look at each lease that is watched
	at      time.Duration      // the moment of the last look
	until   time.Duration      // when the last lease ends, if none rises
	limit   time.Duration      // when it is decided, whatever etcd does meanwhile
	elected bool               // a leader was, since the first look
	risen   string             // the peer that was seen to rise
	refused string
	unread  string
	blind   bool // what is left cannot be told
}

// least is how much of time must pass between two looks, so that a lease which ends is seen
// to sink: etcd answers in whole seconds.
const least = time.Second

// overdue is how long after its end a lease may still be there.
const overdue = 2 * time.Second

// Apart is how far apart two looks have to be.
func Apart(renewal time.Duration) time.Duration { return max(renewal, least) }

// Look takes up what a look showed, in one raft term, of the leases that are still there of
// peers that were there when we were. ttl is how long a lease is taken to last of which etcd
// does not say it.
func (v *Vigil) Look(term uint64, seen []Sighting, ttl, now time.Duration) {
	if gap := now - v.at; v.looks == nil {
		v.limit = now + ttl + overdue
	} else if gap > ttl { // nobody looked meanwhile, so nobody could be seen to rise
		v.limit += gap
	}
	if v.First(term) {
		v.elected = v.looks != nil
		v.term, v.looks, v.until = term, map[int64]Sighting{}, 0
	}
	v.at = now
	there := map[int64]Sighting{}
	v.refused, v.unread, v.blind = "", "", false
	for _, s := range seen {
		before, known := v.looks[s.Lease]
		ends := s.Answered + s.Left + least + overdue
		if !s.told() {
			v.blind, v.refused, v.unread = true, cmp.Or(s.Refused, v.refused), cmp.Or(s.Unread, v.unread)
			ends = now + ttl + overdue
		}
		if !known && !v.elected {
			v.limit = max(v.limit, ends)
		}
		switch {
		case known && rose(before, s):
			v.risen = s.Peer
		case !known || before.told() != s.told():
			v.until = max(v.until, ends)
		}
		there[s.Lease] = s
	}
	v.looks = there
}

// First reports whether no look was taken in that raft term yet.
func (v *Vigil) First(term uint64) bool { return v.looks == nil || v.term != term }

// Rose reports whether a lease was renewed since the look before, in one raft term. One such
// lease is enough.
func (v *Vigil) Rose(term uint64, s Sighting) bool {
	before, known := v.looks[s.Lease]
	return known && v.term == term && rose(before, s)
}

// rose reports whether the lease was renewed between two looks: it is above where it would have
// sunk, and no lower than what a renewal in that time has left of it. One that stays at its end,
// because etcd is slow to delete it, was not, nor one that stands still anywhere else.
func rose(before, now Sighting) bool {
	passed, most := now.Asked-before.Answered, now.Answered-before.Asked
	return before.told() && now.told() && passed >= least && now.Left > 0 &&
		now.Left >= before.Left-passed/2 && now.Left > now.Granted-most-time.Second
}

// told reports whether etcd said when the lease ends.
func (s Sighting) told() bool { return !s.Unknown && s.Refused == "" && s.Unread == "" }

// Verdict says what is known by the last look, and how in a sentence. While it is Unwatched
// the sentence says what is waited for. What only lingered has to be looked at again after its
// end. A leader that is elected lifts it, and so do all that follow: whoever was not seen to
// rise until all leases of the first look must have ended counts for no more than that.
func (v *Vigil) Verdict() (Life, string) {
	ended := v.looks != nil && v.at > v.until
	switch {
	case v.risen != "":
		return Alive, fmt.Sprintf("%s lived on: it renewed its lease while we looked", v.risen)
	case v.looks != nil && len(v.looks) == 0:
		return Lingering, "no broker that was registered with us renewed its lease any more"
	case v.looks != nil && v.at > v.Until() && v.refused != "":
		return Alive, "whether other brokers lived on is not known: " + v.refused
	case v.looks != nil && v.at > v.Until() && v.unread != "":
		return Hidden, v.unread
	case ended && v.blind:
		return Alive, "etcd does not say whether the leases of other brokers live"
	case ended:
		return Lingering, "no other broker renewed its lease before it ended"
	case v.looks != nil && v.at > v.limit:
		return Lingering, "no other broker was seen to renew its lease before it must have ended, though leaders of etcd were elected meanwhile or did not say"
	}
	said := "waiting until the lease of another broker rises or all have ended"
	if names := v.names(); names != "" {
		said = fmt.Sprintf("waiting until the lease of %s rises or ends", names)
	}
	if v.refused != "" {
		said += " (" + v.refused + ")"
	}
	return Unwatched, said
}

// Until is when the vigil ends at the latest.
func (v *Vigil) Until() time.Duration { return min(v.until, v.limit) }

// Due reports whether it is time to look again.
func (v *Vigil) Due(renewal, now time.Duration) bool {
	return v.looks == nil || now-v.at >= Apart(renewal) || v.at <= v.Until() && now > v.Until()
}

func (v *Vigil) names() string {
	var names []string
	for _, s := range v.looks {
		names = append(names, s.Peer)
	}
	slices.Sort(names)
	if n := len(names); n > holdingsNamed+1 {
		return fmt.Sprintf("%s or %d others", strings.Join(names[:holdingsNamed], ", "), n-holdingsNamed)
	}
	return strings.Join(names, " or ")
}

// LeaseLook is one look at how long a lease still lasts.
type LeaseLook struct {
	Sent, Answered time.Duration // on a clock that does not jump
	Left           time.Duration // rounded down to the second
	Term           uint64        // raft term of the answer
}

// LooksApart is how long after a look the next one tells whether a lease is renewed each
// interval. Seconds are all that etcd tells, and a renewal may be a little late.
func LooksApart(interval time.Duration) time.Duration {
	return max(2*interval, interval+3*time.Second)
}

// Renewed reports whether the lease was renewed between two looks, if they tell. A leader
// change lifts each lease, renewed or not.
func Renewed(first, second LeaseLook, interval time.Duration) (renewed, known bool) {
	elapsed := second.Sent - first.Answered
	if first.Term != second.Term || elapsed < LooksApart(interval) {
		return false, false
	}
	return second.Left >= first.Left+time.Second-elapsed, true
}
