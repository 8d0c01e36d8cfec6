package cluster

// Every registration that finds nobody registered writes the era, in its transaction. Who comes
// back compares the revision of that write with its last renewal; the number in it is for people.
//
// A key that cannot be read stays as it is while somebody is registered: a newer version may have
// written it, and a person is to see it. Only an era that begins puts its own in the place, and a
// person may delete it at any time.

// Era counts the times that somebody registered when nobody was registered.
type Era struct {
	N           int64 // at least what the broker's member record says
	ModRevision int64 // of the key; 0: it is absent
	// Unread says what stands there that cannot be read, and at which key; empty: nothing.
	Unread string
}

type eraValue struct {
	Era int64 `json:"era"`
}

// mostEra bounds what is taken for an era: no cluster restarts as often.
const mostEra = 1 << 53

// eraIn is the number of an era or of a member record; ok: it has one, of a format that is
// understood here. What else it holds is borne.
func eraIn(value []byte) (n int64, ok bool) {
	var v struct{ Era *int64 }
	if !readable(value, &v) || v.Era == nil || *v.Era < 0 || *v.Era > mostEra {
		return 0, false
	}
	return *v.Era, true
}

func eraOf(kv *KV) (era Era) {
	if kv == nil {
		return era
	}
	era.ModRevision = kv.ModRevision
	var readable bool
	if era.N, readable = eraIn(kv.Value); !readable {
		era.Unread = at(excerpt(kv.Value), kv.Key)
	}
	return era
}
