package recovery

// Unread says what cannot be read of the records that tell whether the cluster lived on
// without us, and where it stands. Empty: all of it can, or nothing rests on it.
//
// A record that cannot be read is no absent one, and it is not guessed what it said. Nor
// is it a reason to wait, since only a person mends it, nor to drain whom it does not concern:
// a whole fleet reads the era. So the other records that tell the same decide, and what
// would be the same whatever it said is done. Who is left, because a peer lived
// on and only that record could excuse it, is drained, and says which record to look at.
type Unread struct {
	// Record is our own member record: the era that we were registered in, and whether we
	// left on purpose.
	Record string
	// Era is whether the era has grown since then. The era of ClusterFacts is the least that it
	// can be.
	Era string
	// Fleet is until when the fleet before the present era was alive.
	Fleet string
}

// unread is what keeps it from being known whether the cluster declared us dead, if somebody
// lived on or may have; empty: it is known.
func (f ClusterFacts) unread() string {
	switch {
	case f.Told:
		return ""
	case f.Unread.Record != "":
		return f.Unread.Record
	case f.Outlived != "":
		return ""
	case f.grown():
		return f.Unread.Fleet
	case f.Unread.Era != "":
		return f.Unread.Era
	case f.Peers == Hidden:
		return f.PeersSaid
	}
	return ""
}

// unread also counts the note of a planned stop, which would excuse what others did meanwhile.
func (f StartupFacts) unread() string {
	if f.Left != nil && f.Left.Unread != "" {
		return f.Left.unread()
	}
	return f.ClusterFacts.unread()
}

// unreadable is the drain of a broker that only what cannot be read could excuse.
func unreadable(what, how string) Decision {
	detail := "whether the cluster declared it dead is not known: " + what
	if how != what {
		detail += "; " + how
	}
	return drained(ReasonUnreadableRecord, detail)
}
