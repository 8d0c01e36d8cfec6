package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"holdfast/cluster/memory"
)

const fileFormat = 1

// fileMost bounds what is read. A sidecar's store has a few kilobytes.
const fileMost = 16 << 20

// file is the file. The sum is of the bytes of Store.
type file struct {
	Format int             `json:"format"`
	SHA256 string          `json:"sha256"`
	Store  json.RawMessage `json:"store"`
}

type stored struct {
	At      stamp          `json:"at"`
	Content memory.Content `json:"content"`
}

// load reads the file. What is wrong with its content goes to doubt.
func (s *Store) load() (memory.Content, stamp, error) {
	raw, err := read(s.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return memory.Content{}, stamp{}, nil
	}
	if err != nil {
		return memory.Content{}, stamp{}, fmt.Errorf("read %s: %w", s.cfg.Path, err)
	}
	s.found = true
	var in stored
	if problem := decode(raw, &in); problem != "" {
		return memory.Content{}, stamp{}, s.distrust(problem)
	}
	return in.Content, in.At, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, fileMost+1))
}

// decode returns what is wrong with the bytes, empty if nothing is.
func decode(raw []byte, in *stored) string {
	var f file
	if len(raw) > fileMost {
		return fmt.Sprintf("longer than %d bytes", fileMost)
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return err.Error()
	}
	if f.Format != fileFormat {
		return fmt.Sprintf("it has format %d, this version knows %d", f.Format, fileFormat)
	}
	if sum := sha256.Sum256(f.Store); hex.EncodeToString(sum[:]) != f.SHA256 {
		return "its checksum is not that of its content"
	}
	if err := json.Unmarshal(f.Store, in); err != nil {
		return err.Error()
	}
	if in.At.Now.IsZero() || in.At.Wall.IsZero() {
		return "it does not say of when it is"
	}
	return ""
}

// distrust puts the file aside and notes why.
func (s *Store) distrust(problem string) error {
	s.doubt = fmt.Sprintf("%s is corrupt (%s); kept as %s.corrupt", s.cfg.Path, problem, s.cfg.Path)
	return s.putAside(".corrupt")
}

func (s *Store) putAside(ending string) error {
	if err := os.Rename(s.cfg.Path, s.cfg.Path+ending); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put %s aside: %w", s.cfg.Path, err)
	}
	return nil
}

// write replaces the file atomically and durably.
func (s *Store) write(c memory.Content, at stamp) error {
	content, err := json.Marshal(stored{At: at, Content: c})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	sum := sha256.Sum256(content)
	raw, err := json.Marshal(file{Format: fileFormat, SHA256: hex.EncodeToString(sum[:]), Store: content})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	dir := filepath.Dir(s.cfg.Path)
	tmp, err := os.CreateTemp(dir, "store-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename, as it should
	_, err = tmp.Write(append(raw, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), s.cfg.Path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
