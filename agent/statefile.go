package agent

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/cluster"
	"holdfast/recovery"
)

// memory is what a sidecar must know of its earlier life. It is a hint: whatever
// it says about etcd is verified there.
type memory struct {
	Format      int    `json:"format"`
	BrokerID    string `json:"broker_id"`
	Incarnation string `json:"incarnation"` // of this state directory, for ever
	// FirstBootDone is the marker of a completed first boot: a registration stood.
	FirstBootDone bool   `json:"first_boot_done"`
	Instance      string `json:"instance"` // broker process at the last registration
	// Process is which process of this host Instance was; nil: it was not recognized.
	Process *pastProcess `json:"process,omitempty"`
	// Place is where the directory was when a registration stood, see stateDir.place.
	Place string `json:"place,omitempty"`
	// Data is the identity of the broker's own data, as it was first seen of that process.
	Data recovery.DataID `json:"data,omitempty"`
	// Value is what a broker that is named by its instance registered itself with.
	Value       []byte `json:"value,omitempty"`
	LeaseID     int64  `json:"lease_id"`
	Joined      bool   `json:"joined,omitempty"` // that lease is the broker's own
	Epoch       int64  `json:"epoch"`
	Revision    int64  `json:"revision"`     // highest store revision seen
	ConfirmedAt int64  `json:"confirmed_at"` // revision of the last confirmed renewal that was noted
	// Deadline is when its lease was over at the latest, by our wall clock; zero: not known.
	Deadline time.Time `json:"deadline,omitzero"`
	// Store says in which sort of store the registration is: "none" is our own, empty an etcd.
	Store string `json:"store,omitempty"`
	// Released says that the last stop gave the registration up, and that etcd has confirmed it.
	Released bool       `json:"released,omitempty"`
	Mode     string     `json:"mode"`
	Reason   string     `json:"reason"`
	By       string     `json:"by"`
	Boot     BootStatus `json:"boot"`
	// Decided is the decision that Mode comes from; nil: others set it, or an older version did.
	Decided *DecisionStatus `json:"decided,omitempty"`
	// Left is the process that was to be stopped after 'holdfast leave'; nil: none is.
	Left *leftProcess `json:"left,omitempty"`
	// Pause is the maintenance pause in force; nil: none.
	Pause *recovery.Pause `json:"pause,omitempty"`
	// Distrust holds what was wrong with an earlier state file until a decision took
	// it into account.
	Distrust string `json:"distrust,omitempty"`
}

const memoryFormat = 1

// highest is the highest revision of the store that is remembered.
func (m memory) highest() int64 { return max(m.Revision, m.ConfirmedAt) }

// undone reports whether the registration that was given up stands, or an older one. One that
// is newer was written after the state file was.
func (m memory) undone(seen cluster.Snapshot) bool {
	return m.Released && seen.Registration != nil && seen.Registration.CreateRevision <= m.Epoch
}

// lockFile holds the pid of the sidecar that has locked it.
const lockFile = "lock"

// stateDir is the sidecar's own directory, locked against a second sidecar.
type stateDir struct {
	path string
	lock *os.File
}

// openStateDir creates and locks the directory and proves that it can be written.
// The messages name the setting, the value and the remedy.
func openStateDir(path string) (*stateDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("--state-dir %s: %s: create it writable for this user, or set --state-dir", path, reason(err))
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--state-dir %s: %s: make it writable for this user, or set --state-dir", path, reason(err))
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, _ := os.ReadFile(lock.Name())
			return nil, fmt.Errorf("--state-dir %s: another holdfast uses it (pid %s): give each sidecar a directory of its own",
				path, strings.TrimSpace(string(pid)))
		}
		return nil, fmt.Errorf("--state-dir %s: lock: %w", path, err)
	}
	d := &stateDir{path: path, lock: lock}
	if err := errors.Join(lock.Truncate(0), writeAt(lock, fmt.Sprintf("%d\n", os.Getpid()))); err != nil {
		d.close()
		return nil, fmt.Errorf("--state-dir %s: %s: free space or set --state-dir", path, reason(err))
	}
	return d, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func (d *stateDir) close() error { return d.lock.Close() }

func (d *stateDir) file() string { return filepath.Join(d.path, "state.json") }

// load reads the memory. A file that cannot be understood is put aside under another name.
func (d *stateDir) load() (memory, error) {
	m, corrupt, err := readMemory(d.path)
	if err != nil || !corrupt {
		return m, err
	}
	aside := d.file() + ".corrupt"
	if err := os.Rename(d.file(), aside); err != nil {
		return memory{}, fmt.Errorf("--state-dir %s: put the corrupt state.json aside: %s", d.path, reason(err))
	}
	m.Distrust += "; kept as " + aside
	return m, nil
}

// readMemory reads the memory in a state directory, which may be locked by another. Without
// a file it is a new one. A file that cannot be understood is corrupt, and leaves its trace
// in Distrust: it stood for a life that we know nothing of, so the next decision fails closed.
func readMemory(dir string) (m memory, corrupt bool, err error) {
	fresh := memory{Format: memoryFormat, Incarnation: randomID()}
	file := (&stateDir{path: dir}).file()
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, false, nil
	}
	if err != nil {
		return memory{}, false, fmt.Errorf("--state-dir %s: read state.json: %s: make it readable for this user", dir, reason(err))
	}
	switch err := json.Unmarshal(raw, &m); {
	case err != nil:
		fresh.Distrust = fmt.Sprintf("%s is corrupt (%v)", file, err)
	case m.Format != memoryFormat:
		fresh.Distrust = fmt.Sprintf("%s has format %d, this version knows %d", file, m.Format, memoryFormat)
	case len(m.Incarnation) != 32:
		fresh.Distrust = file + " is corrupt (no incarnation)"
	default:
		return m, false, nil
	}
	return fresh, true, nil
}

// save replaces the file atomically; after it returned nil the new content
// survives a power cut.
func (d *stateDir) save(m memory) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	tmp, err := os.CreateTemp(d.path, "state-*.tmp")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	_, err = tmp.Write(append(raw, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(tmp.Name(), d.file()); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	dir, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("sync state directory: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync state directory: %w", err)
	}
	return nil
}

// randomID is 128 random bits in hexadecimal: of an incarnation, or of one process.
func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}
