package reference

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// dir is where a topic's files are. Its name may hold anything, so it is no file name.
func dir(root, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(root, "topics", hex.EncodeToString(sum[:]))
}

// read takes up what the life before left.
func (b *Broker) read() error {
	b.mode, b.topics = mode{Mode: "active"}, map[string]*topic{}
	if err := readJSON(filepath.Join(b.o.Dir, "mode.json"), &b.mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dirs, err := filepath.Glob(filepath.Join(b.o.Dir, "topics", "*"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		t, err := readTopic(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue // killed while it was made
		}
		if err != nil {
			return err
		}
		b.topics[t.Name] = t
	}
	return nil
}

func readTopic(d string) (*topic, error) {
	t := &topic{}
	if err := readJSON(filepath.Join(d, "topic.json"), t); err != nil {
		return nil, err
	}
	file := filepath.Join(d, "messages")
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t.messages, t.bytes = bytes.Count(text, []byte("\n")), bytes.LastIndexByte(text, '\n')+1
	if t.bytes < len(text) {
		return t, os.Truncate(file, int64(t.bytes)) // it was never acknowledged
	}
	return t, nil
}

func readJSON(file string, v any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

// writeJSON leaves the old file or the new one, whenever the process is killed.
func writeJSON(file string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// keep writes the topic down before anybody hears of its state.
func (b *Broker) keep(t *topic) (state, error) {
	if err := writeJSON(filepath.Join(dir(b.o.Dir, t.Name), "topic.json"), t); err != nil {
		return state{}, err
	}
	b.topics[t.Name] = t
	return state{t.state()}, nil
}

func (b *Broker) keepMode(m mode) error {
	if err := writeJSON(filepath.Join(b.o.Dir, "mode.json"), m); err != nil {
		return err
	}
	b.mode = m
	return nil
}

// add appends messages to a topic.
func (b *Broker) add(t *topic, data string) error {
	line, err := json.Marshal(data)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir(b.o.Dir, t.Name), "messages"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	t.messages++
	t.bytes += len(line) + 1
	return nil
}

// messagesOf opens the messages of a topic, one line each. One that never had any has no file.
func (b *Broker) messagesOf(t *topic) (io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(dir(b.o.Dir, t.Name), "messages"))
	if errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	return f, err
}

// next reads up to n messages from an offset on.
func (b *Broker) next(t *topic, from uint64, n int) ([]string, error) {
	f, err := b.messagesOf(t)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	got, lines := []string{}, bufio.NewReader(f)
	for at := uint64(0); len(got) < n; at++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return got, nil // the end
		}
		if at < from {
			continue
		}
		var data string
		if err := json.Unmarshal(line, &data); err != nil {
			return nil, err
		}
		got = append(got, data)
	}
	return got, nil
}

// sync makes sure that the messages are on disk, and not only with the kernel.
func (b *Broker) sync(t *topic) error {
	f, err := os.OpenFile(filepath.Join(dir(b.o.Dir, t.Name), "messages"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// piece reads a part of a topic's messages.
func (b *Broker) piece(t *topic, at, n uint64) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir(b.o.Dir, t.Name), "messages"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, int64(at), int64(min(n, piece))))
}

// put writes a part of a copy, behind which nothing is.
func (b *Broker) put(t *topic, at uint64, data []byte) error {
	f, err := os.OpenFile(filepath.Join(dir(b.o.Dir, t.Name), "messages"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, int64(at))
	return errors.Join(err, f.Truncate(int64(at)+int64(len(data))), f.Close())
}

// remove takes the state first: what is left without one is nothing.
func (b *Broker) remove(name string) error {
	d := dir(b.o.Dir, name)
	if err := os.Remove(filepath.Join(d, "topic.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(b.topics, name)
	return os.RemoveAll(d)
}
