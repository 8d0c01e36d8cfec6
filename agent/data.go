package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"holdfast/probes"
	"holdfast/recovery"
)

// This file is about data that is on this broker only: whether what the broker has come up on
// is what it had before. What brokers share, or keep elsewhere, is not judged.

// ownData is the identity of the broker's own data; empty: not known, or there is none.
func (a *agent) ownData(dir probes.DirView) recovery.DataID {
	if !a.traits.LocalData {
		return ""
	}
	return recovery.DataID(dir.Identity)
}

// elsewhere says that the broker states another data directory than the one that is given, or one
// around that. Empty: it does not, or what it states is not seen from here, as in another container,
// and the one that is given is.
func elsewhere(given, stated string) string {
	here, err := os.Stat(given)
	there, unseen := os.Stat(stated)
	away := ""
	switch {
	case stated == "", strings.HasPrefix(given+"/", strings.TrimSuffix(stated, "/")+"/"):
		return ""
	case errors.Is(err, fs.ErrNotExist):
		away = "not there, and "
	case err != nil, unseen != nil, os.SameFile(here, there):
		return ""
	}
	return fmt.Sprintf("--data-dir %s: %sthe broker says that its data is in %s: leave --data-dir out, or give that", given, away, stated)
}

// dataPatience bounds the wait for a look at the data of a process that answers. A disk that
// hangs must not keep a broker out that serves from it.
const dataPatience = 5 * time.Second

// dataSeen reports whether the data directory was looked at since that process of the broker
// was first seen, or is not waited for any more: then what data it has is not known.
func (a *agent) dataSeen(instance string) bool {
	if a.dataFresh(instance) {
		_, doubtful := a.dataGone(instance)
		return !doubtful || a.memory.Data == ""
	}
	late := time.Since(a.dataFrom) >= dataPatience
	if late && a.dataLate != instance {
		a.dataLate = instance
		a.log.Warn("the data directory takes too long to look at: whether the broker has come up on its own data is not known", "dir", a.dataDir.Path(), "waited", dataPatience)
	}
	return late
}

// dataGone reports whether the data directory of a process that answers is not there. One look
// does not tell: a link is exchanged, a disk is mounted for the sidecar a moment later. It is
// doubtful until the second.
func (a *agent) dataGone(instance string) (gone, doubtful bool) {
	dir := a.dataDir.Snapshot()
	if !a.traits.LocalData || a.dataDir.Path() == "" || !a.dataFresh(instance) || dir.State != probes.DirMissing {
		a.goneFrom = time.Time{}
		return false, false
	}
	now := time.Now()
	if a.goneFrom.IsZero() {
		a.goneFrom = now
	}
	due := a.goneFrom.Add(dataPatience)
	switch {
	case !dir.ScannedAt.Before(due):
		return true, false
	case now.Before(due):
		return false, true
	default:
		a.dataDir.Look()
		return false, now.Before(due.Add(dataPatience)) // then it hangs, and nothing is known
	}
}

// dataFound is the identity of the data of that process; empty: not known, or not its own.
func (a *agent) dataFound(instance string, dir probes.DirView) recovery.DataID {
	if !a.dataFresh(instance) {
		return ""
	}
	return a.ownData(dir)
}

// dataFresh reports whether the data directory was looked at since that process of the broker
// was first seen. What was there before may have been exchanged for it: a disk that is mounted
// makes no event.
func (a *agent) dataFresh(instance string) bool {
	if !a.traits.LocalData || a.dataDir.Path() == "" {
		return true
	}
	if a.dataOf != instance {
		a.dataOf, a.dataFrom = instance, time.Now()
		a.dataDir.Look()
	}
	return !a.dataDir.Snapshot().ScannedAt.Before(a.dataFrom)
}

// noteData remembers the data of a broker that had none when it was registered.
func (a *agent) noteData(instance string) {
	if a.memory.Data != "" || a.grant.LeaseID == 0 || instance != a.memory.Instance {
		return
	}
	if data := a.dataFound(instance, a.dataDir.Snapshot()); data != "" {
		a.remember(func(m *memory) { m.Data = data })
		a.keeper.Reestablish() // the member record is to have it, too
	}
}
