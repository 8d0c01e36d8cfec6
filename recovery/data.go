package recovery

import (
	"fmt"
	"strings"
	"time"
)

// DataID tells a directory of data from another one in its place: the name within the data
// directory, "@", then inode and birth time. Empty: not known, as on a file system that keeps
// no birth time. An inode alone is given out again, and some file systems change it, so
// nothing is condemned by it.
type DataID string

// within is the name of the directory that the identity is of.
func (id DataID) within() string {
	name, _, _ := strings.Cut(string(id), "@")
	return name
}

// another reports whether the data that was found is known to be in another directory. Identities
// of two names are not compared: the markers may be looked for elsewhere by now.
func (id DataID) another(found DataID) bool {
	return id != "" && found != "" && found != id && found.within() == id.within()
}

// DataMissing says by what the broker's data is known to be gone; empty: it is not. Another
// directory alone does not say so: what was brought to it before the broker started is older
// than the process. None at all does: a process that answers has made or opened its own, so it
// has its data elsewhere or has none.
func DataMissing(remembered, found DataID, f BootFacts) string {
	if remembered != "" && f.DirGone != "" {
		return fmt.Sprintf("the broker had data, and the data directory %s is not there: it is wiped or not mounted, "+
			"or the broker keeps its data elsewhere, and --data-dir does not say where", f.DirGone)
	}
	marked := !f.OldestMarker.IsZero() && (f.BrokerStartedAt.IsZero() || f.OldestMarker.Before(f.BrokerStartedAt))
	if !remembered.another(found) || f.DirError != "" || marked {
		return ""
	}
	holds := "it holds nothing of an earlier life"
	if !f.OldestMarker.IsZero() {
		holds = fmt.Sprintf("the oldest in it, %s, is %s younger than the broker process", f.MarkerPath, f.OldestMarker.Sub(f.BrokerStartedAt).Round(time.Millisecond))
	}
	return fmt.Sprintf("the directory %s is not the one that held the broker's data, and %s", found.within(), holds)
}
