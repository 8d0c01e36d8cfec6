package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"holdfast/probes"
)

// A directory that may be read is enough; of one that is not there nothing is said to be on disk.
func TestWhatIsSyncedIsTheDataDirectoryThatIsSeenFromHere(t *testing.T) {
	there := t.TempDir()
	if err := os.Chmod(there, 0o500); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{there: there, filepath.Join(there, "elsewhere"): "", "": ""} {
		a := &agent{dataDir: probes.NewDataDir(path, nil, true, slog.New(slog.DiscardHandler))}
		if dir, err := a.syncData(); dir != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", path, dir, err, want)
		}
	}
}
