package recovery

import "slices"

// Rendezvous is highest-random-weight hashing: each broker has a weight for each
// topic, and the heaviest is the topic's home. Whoever knows the same brokers finds
// the same home, and when a broker comes or goes no topic moves between the others.
//
// The weights are part of the cluster's agreement: another version of Holdfast must
// compute the same ones.
type Rendezvous struct {
	names  []string // sorted: a tie goes to the first
	hashes []uint64
}

// NewRendezvous returns the hashing over these brokers.
func NewRendezvous(brokers []string) Rendezvous {
	r := Rendezvous{names: slices.Clone(brokers)}
	slices.Sort(r.names)
	r.names = slices.Compact(r.names)
	for _, name := range r.names {
		r.hashes = append(r.hashes, fnv1a(name))
	}
	return r
}

// Home is the topic's broker; empty without any broker.
func (r Rendezvous) Home(topic string) string {
	best, most := "", uint64(0)
	t := fnv1a(topic)
	for i, b := range r.hashes {
		if w := mix(b ^ mix(t)); best == "" || w > most {
			best, most = r.names[i], w
		}
	}
	return best
}

// fnv1a is the 64-bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix is the finalizer of SplitMix64: every bit of x decides every bit of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
