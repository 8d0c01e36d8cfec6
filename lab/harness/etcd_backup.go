package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Backup is the files of an etcd server as they were at one moment.
type Backup struct {
	Revision int64
	dir      string
}

// dataDir is where StartEtcd has the server keep its files.
func (e *Etcd) dataDir() string { return filepath.Join(e.lab.Dir, e.Name+".etcd") }

// Backup copies the server's files while it stands still, as a snapshot of its disk
// would. It must have one member; that one is away for the time of the copy.
func (e *Etcd) Backup(ctx context.Context) (Backup, error) {
	dir, err := os.MkdirTemp(e.lab.Dir, "backup-")
	if err != nil {
		return Backup{}, fmt.Errorf("back up etcd: %w", err)
	}
	res, err := e.client.Get(ctx, "/")
	if err != nil {
		return Backup{}, fmt.Errorf("back up etcd: read revision: %w", err)
	}
	if err := e.Freeze(); err != nil {
		return Backup{}, fmt.Errorf("back up etcd: %w", err)
	}
	err = os.CopyFS(dir, os.DirFS(e.dataDir()))
	if thawed := e.Thaw(); err == nil {
		err = thawed
	}
	if err != nil {
		return Backup{}, fmt.Errorf("back up etcd: %w", err)
	}
	return Backup{Revision: res.Header.Revision, dir: dir}, nil
}

// Restore kills the server and starts it on the files of a backup, and returns how
// long it was away. What was written since the backup is gone, and so are the
// revisions: they are given out again.
func (e *Etcd) Restore(ctx context.Context, b Backup) (away time.Duration, err error) {
	began := time.Now()
	if e.Running() {
		if err := e.Kill(); err != nil {
			return 0, err
		}
	}
	if err := os.RemoveAll(e.dataDir()); err != nil {
		return 0, fmt.Errorf("restore etcd: %w", err)
	}
	if err := os.CopyFS(e.dataDir(), os.DirFS(b.dir)); err != nil {
		return 0, fmt.Errorf("restore etcd: %w", err)
	}
	// etcd insists on its own modes, which CopyFS does not keep.
	if err := os.Chmod(e.dataDir(), 0o700); err != nil {
		return 0, fmt.Errorf("restore etcd: %w", err)
	}
	err = e.Start(ctx)
	return time.Since(began), err
}
