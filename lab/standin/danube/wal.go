package danube

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// wal is a topic's messages on disk: segments named by the offset of their first
// message, each a row of records (length, checksum, message). What append has returned
// for is on disk. A record that a kill cut short is cut off when the log is opened.
// Not safe for concurrent use. It is read from memory.
type wal struct {
	dir      string
	limit    int64 // of a segment, bytes
	segments []segment
	open     *os.File // the last segment; nil: the next append starts one
	size     int64
	next     uint64 // offset of the next message
}

type segment struct {
	base     uint64
	messages [][]byte
}

func (s segment) end() uint64 { return s.base + uint64(len(s.messages)) }

const (
	segmentSuffix = ".wal"
	recordHeader  = 8
)

func segmentName(base uint64) string { return fmt.Sprintf("%020d%s", base, segmentSuffix) }

// openWAL opens the log in dir, which may be missing. The first message appended has at
// least the offset from: what is before it is elsewhere.
func openWAL(dir string, limit int64, from uint64) (*wal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	w := &wal{dir: dir, limit: limit}
	names, err := segmentNames(dir)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	for _, name := range names {
		base, err := strconv.ParseUint(strings.TrimSuffix(name, segmentSuffix), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("open log: %s is no name of a segment: %w", filepath.Join(dir, name), err)
		}
		messages, good, err := scan(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		if len(messages) == 0 { // the next append starts a segment of this name
			err = os.Remove(filepath.Join(dir, name))
		} else {
			err = os.Truncate(filepath.Join(dir, name), good)
		}
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		if len(messages) == 0 {
			continue
		}
		w.segments = append(w.segments, segment{base, messages})
		w.next = w.segments[len(w.segments)-1].end()
	}
	w.next = max(w.next, from)
	return w, nil
}

// segmentNames are in the order of their offsets.
func segmentNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), segmentSuffix) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// scan returns the messages of a segment. good is the length of the whole records.
func scan(path string) (messages [][]byte, good int64, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read segment: %w", err)
	}
	for rest := b; len(rest) >= recordHeader; {
		n := int64(binary.BigEndian.Uint32(rest))
		if int64(len(rest)) < recordHeader+n {
			break
		}
		message := rest[recordHeader : recordHeader+n]
		if crc32.ChecksumIEEE(message) != binary.BigEndian.Uint32(rest[4:]) {
			break
		}
		messages = append(messages, message)
		good += recordHeader + n
		rest = rest[recordHeader+n:]
	}
	return messages, good, nil
}

// append writes one message and returns its offset when it is on disk.
func (w *wal) append(message []byte) (offset uint64, err error) {
	if w.open == nil || w.size >= w.limit {
		if err := w.rotate(); err != nil {
			return 0, err
		}
		path := filepath.Join(w.dir, segmentName(w.next))
		if w.open, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
			return 0, fmt.Errorf("start segment: %w", err)
		}
		w.segments = append(w.segments, segment{base: w.next})
		w.size = 0
	}
	record := make([]byte, recordHeader, recordHeader+len(message))
	binary.BigEndian.PutUint32(record, uint32(len(message)))
	binary.BigEndian.PutUint32(record[4:], crc32.ChecksumIEEE(message))
	record = append(record, message...)
	if _, err := w.open.Write(record); err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	if err := w.open.Sync(); err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	offset = w.next
	w.size += int64(len(record))
	last := &w.segments[len(w.segments)-1]
	last.messages = append(last.messages, slices.Clone(message))
	w.next++
	return offset, nil
}

// rotate ends the open segment. An empty one, which an append that failed left, is removed.
func (w *wal) rotate() error {
	if w.open == nil {
		return nil
	}
	err := errors.Join(w.open.Sync(), w.open.Close())
	w.open = nil
	if last := w.segments[len(w.segments)-1]; len(last.messages) == 0 {
		err = errors.Join(err, os.Remove(filepath.Join(w.dir, segmentName(last.base))))
		w.segments = w.segments[:len(w.segments)-1]
	}
	if err != nil {
		return fmt.Errorf("end segment: %w", err)
	}
	return nil
}

// read returns at most limit messages from the offset on.
func (w *wal) read(from uint64, limit int) (found []Message) {
	for _, s := range w.segments {
		for offset := max(from, s.base); offset < s.end() && len(found) < limit; offset++ {
			found = append(found, Message{Offset: offset, Data: s.messages[offset-s.base]})
		}
	}
	return found
}

func (w *wal) count() (n uint64) {
	for _, s := range w.segments {
		n += uint64(len(s.messages))
	}
	return n
}

// copySegments brings to what from has and to lacks or has less of.
func copySegments(from, to string) error {
	names, err := segmentNames(from)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		have, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if there, err := os.Stat(filepath.Join(to, name)); err == nil && there.Size() >= have.Size() {
			continue
		}
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile replaces to in one step.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(to), ".copy-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err == nil {
		err = os.Rename(out.Name(), to)
	}
	if err != nil {
		os.Remove(out.Name())
	}
	return err
}
