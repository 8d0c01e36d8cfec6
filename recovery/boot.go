package recovery

import (
	"fmt"
	"strings"
	"time"
)

// BootKind says whether the broker has lived before.
type BootKind string

// Boot kinds. There is no third: whatever is not proven to be a first boot is a
// restart, because taking a restart for a first boot would activate a broker that
// the cluster has declared dead.
const (
	FirstBoot BootKind = "first_boot"
	Restart   BootKind = "restart"
)

// BootFacts is the evidence for the boot kind, in the order of its weight.
type BootFacts struct {
	BrokerStartedAt time.Time // zero: the broker does not tell
	OldestMarker    time.Time // zero: no marker in the data directory
	MarkerPath      string
	DirError        string // the data directory could not be read; empty: it could, or is not there
	DirGone         string // where it is looked for, if it is surely not there
	StateFile       bool   // our own state file records a completed first boot
	StateFileError  string // it is there and cannot be read
	KnownToCluster  bool   // etcd has a state or a member record of this broker
}

// JudgeBoot weighs the evidence. The sentences say what was found, for people.
func JudgeBoot(f BootFacts) (BootKind, []string) {
	var found []string
	switch {
	case f.DirError != "":
		found = append(found, "data directory unreadable ("+f.DirError+"): taken for a restart")
	case f.OldestMarker.IsZero():
	case f.BrokerStartedAt.IsZero():
		found = append(found, fmt.Sprintf("%s is there, and the broker does not say when it started", f.MarkerPath))
	case f.OldestMarker.Before(f.BrokerStartedAt):
		found = append(found, fmt.Sprintf("%s is %s older than the broker process", f.MarkerPath,
			f.BrokerStartedAt.Sub(f.OldestMarker).Round(time.Millisecond)))
	}
	if f.StateFileError != "" {
		found = append(found, "state file unreadable ("+f.StateFileError+"): taken for a restart")
	} else if f.StateFile {
		found = append(found, "state file records a completed first boot")
	}
	if f.KnownToCluster {
		found = append(found, "etcd knows this broker")
	}
	if len(found) > 0 {
		return Restart, found
	}
	return FirstBoot, []string{"no older data, no state file, unknown to etcd"}
}

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
