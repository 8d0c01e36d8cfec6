package recovery

import (
	"fmt"
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
