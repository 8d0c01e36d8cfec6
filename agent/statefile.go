package agent

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/agent/registration"
	"holdfast/recovery"
)

// memory is what a sidecar must know of its earlier life. It is a hint: whatever
// it says about etcd is verified there.
type memory struct {
	Format   int    `json:"format"`
	BrokerID string `json:"broker_id"`
	registration.Past
	// Process is which process of this host Instance was; nil: it was not recognized.
	Process *recognize.Past `json:"process,omitempty"`
	// Place is where the directory was when a registration stood, see stateDir.place.
	Place string `json:"place,omitempty"`
	// Whole is the store revision at which everything assigned was last served on that data.
	Whole int64 `json:"whole,omitempty"`
	// Value is what a broker that is named by its instance registered itself with.
	Value  []byte `json:"value,omitempty"`
	Joined bool   `json:"joined,omitempty"` // an older version: that lease is a Pulsar broker's session, not ours
	// Store says where the registration is: "state" is this very file, empty an etcd.
	Store string             `json:"store,omitempty"`
	Boot  control.BootStatus `json:"boot"`
	// Decided is the decision that Mode comes from; nil: others set it, or an older version did.
	Decided *control.DecisionStatus `json:"decided,omitempty"`
	// Left is the process that was to be stopped after 'holdfast leave'; nil: none is.
	Left *registration.LeftProcess `json:"left,omitempty"`
	// Pause is the maintenance pause in force; nil: none.
	Pause *recovery.Pause `json:"pause,omitempty"`
}

const memoryFormat = 1

// newMemory is that of a sidecar without a past.
func newMemory() memory {
	return memory{Format: memoryFormat, Past: registration.Past{Incarnation: randomID()}}
}

// stateDir is the sidecar's own directory, locked against a second sidecar.
type stateDir struct {
	path string
	// dir and lock are both locked: the file tells others who we are, and may be removed.
	// lock is nil where there is none and none can be made.
	dir, lock *os.File
	fresh     bool // no earlier life was found in it
	only      bool // nothing else keeps the broker's mode
	// first is its place at the start, and here the present one.
	first, here string
}

// openStateDir creates and locks the directory. One that cannot be written is opened all the
// same, since what is in it can be read. The messages name the setting, the value and the remedy.
func openStateDir(path string) (*stateDir, error) {
	d := &stateDir{path: path}
	if err := d.take(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// take locks what stands there and is not ours yet.
func (d *stateDir) take() error {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("--state-dir %s: %s: create it writable for this user, or set --state-dir", d.path, config.Cause(err))
	}
	if !process.SameFile(d.dir, d.path) {
		dir, err := os.Open(d.path)
		if err != nil {
			return d.refused(err)
		}
		if errors.Is(flock(dir), unix.EWOULDBLOCK) { // some file systems lock no directory
			dir.Close()
			return d.taken()
		}
		d.dir.Close()
		d.dir, d.here = dir, d.place()
		d.first = cmp.Or(d.first, d.here)
	}
	path := filepath.Join(d.path, control.LockFile)
	if process.SameFile(d.lock, path) {
		return nil
	}
	lock, err := openWritable(path)
	if _, statErr := os.Lstat(path); unwritable(err) && errors.Is(statErr, fs.ErrNotExist) {
		return nil // the directory's lock does until it can be made
	}
	if err != nil {
		return d.refused(err)
	}
	if err := flock(lock); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return d.taken()
		}
		return fmt.Errorf("--state-dir %s: lock: %w", d.path, err)
	}
	_, _ = lock.WriteAt(fmt.Appendf(nil, "%-10d\n", os.Getpid()), 0) // in place: that needs no room
	d.lock.Close()
	d.lock = lock
	return nil
}

func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// openWritable opens or makes a file, and only to be read what cannot be written.
func openWritable(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if unwritable(err) {
		if readable, readErr := os.Open(path); readErr == nil {
			return readable, nil
		}
	}
	return f, err
}

// unwritable reports whether the file system takes nothing at present.
func unwritable(err error) bool {
	for _, no := range []error{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EACCES, unix.EPERM} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func (d *stateDir) refused(err error) error {
	return fmt.Errorf("--state-dir %s: %s: make it writable for this user, or set --state-dir", d.path, config.Cause(err))
}

func (d *stateDir) taken() error {
	pid, _ := os.ReadFile(filepath.Join(d.path, control.LockFile))
	return fmt.Errorf("--state-dir %s: another holdfast uses it (pid %s): give each sidecar a directory of its own",
		d.path, strings.TrimSpace(string(pid)))
}

// stands reports whether the directory, its lock and the state in it are still there.
func (d *stateDir) stands() bool {
	_, err := os.Stat(d.file())
	return err == nil && process.SameFile(d.dir, d.path) && process.SameFile(d.lock, filepath.Join(d.path, control.LockFile))
}

func (d *stateDir) close() {
	d.dir.Close()
	d.lock.Close()
}

func (d *stateDir) file() string { return filepath.Join(d.path, "state.json") }

// load reads the memory. A file that cannot be understood is put aside under another name.
func (d *stateDir) load() (memory, error) {
	m, corrupt, err := readMemory(d.path)
	_, statErr := os.Stat(d.file())
	d.fresh = corrupt || statErr != nil
	if err != nil || !corrupt {
		return m, err
	}
	// The file keeps its name too until a save replaces it: while none does, each start sees it.
	aside := d.file() + ".corrupt"
	if err = os.Remove(aside); err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Link(d.file(), aside)
	}
	if err != nil && !unwritable(err) {
		return memory{}, fmt.Errorf("--state-dir %s: put the corrupt state.json aside: %s", d.path, config.Cause(err))
	}
	m.Distrust += "; kept as " + aside
	return m, nil
}

// readMemory reads the memory in a state directory, which may be locked by another. Without
// a file it is a new one. A file that cannot be understood is corrupt, and leaves its trace
// in Distrust: it stood for a life that we know nothing of, so the next decision fails closed.
func readMemory(dir string) (m memory, corrupt bool, err error) {
	fresh := newMemory()
	file := (&stateDir{path: dir}).file()
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fresh, false, nil
	}
	if err != nil {
		return memory{}, false, fmt.Errorf("--state-dir %s: read state.json: %s: make it readable for this user", dir, config.Cause(err))
	}
	switch err := json.Unmarshal(raw, &m); {
	case err != nil:
		fresh.Distrust = fmt.Sprintf("%s is corrupt (%v)", file, err)
	case m.Format != memoryFormat:
		fresh.Distrust = fmt.Sprintf("%s has format %d, this version knows %d", file, m.Format, memoryFormat)
	case len(m.Incarnation) != 32:
		fresh.Distrust = file + " is corrupt (no incarnation)"
	default:
		if m.Joined { // who takes it for ours would end it
			m.LeaseID, m.Joined = 0, false
		}
		return m, false, nil
	}
	return fresh, true, nil
}

// save replaces the file in one step or, where nothing else keeps the mode and there is no room for
// two, in place: torn, it is corrupt. After it returned nil the new content survives a power cut.
func (d *stateDir) save(m memory) error {
	if m.Place == d.first {
		m.Place = d.here // somebody has replaced the directory under us, and nobody has copied it
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	raw = append(raw, '\n')
	err = d.replace(raw)
	if d.only && unwritable(err) && process.Overwrite(d.file(), raw) == nil {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := d.dir.Sync(); err != nil {
		return fmt.Errorf("sync state directory: %w", err)
	}
	return nil
}

func (d *stateDir) replace(raw []byte) error {
	tmp, err := os.CreateTemp(d.path, "state-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	_, err = tmp.Write(raw)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), d.file())
}

// randomID is 128 random bits in hexadecimal: of an incarnation, or of one process.
func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// machineID is where the host says which machine it is.
const machineID = "/etc/machine-id"

// place tells where the directory is from where a copy of it is. Empty: not known.
func (d *stateDir) place() string {
	var st unix.Stat_t
	if unix.Stat(d.path, &st) != nil {
		return ""
	}
	machine, _ := os.ReadFile(machineID) // in a container there may be none
	return fmt.Sprintf("%s/%x/%d", strings.TrimSpace(string(machine)), st.Dev, st.Ino)
}

// movedTo reports whether the directory was elsewhere. A file of a version that did not note
// where is taken for one that was not.
func (m memory) movedTo(place string) bool { return m.Place != "" && place != "" && m.Place != place }
