package access

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// maxToken is far above any token that a server's header limit lets through, in bytes.
const maxToken = 16 << 10

// Token is a bearer token on disk, read again when the file changes. It is safe for
// concurrent use.
type Token struct {
	path string

	mu       sync.Mutex
	value    string
	read     fileState // of the file when value was read
	previous string    // what an answer may still quote
}

// fileState tells a changed file from the one that was read.
type fileState struct {
	modified time.Time
	size     int64
	file     os.FileInfo // for os.SameFile: a new file may have the old one's time and size
}

func (s fileState) same(o fileState) bool {
	return s.file != nil && s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.file, o.file)
}

// OpenToken reads the file of --broker-token-file.
func OpenToken(path string) (*Token, error) {
	t := &Token{path: path}
	if err := t.Reread(); err != nil {
		return nil, err
	}
	return t, nil
}

// Path is the file.
func (t *Token) Path() string { return t.path }

// Current is the token as the file has it now. When the file cannot be read, as while
// somebody replaces it, it is the last one that could.
func (t *Token) Current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if info, err := os.Stat(t.path); err == nil && !t.read.same(stateOf(info)) {
		_ = t.rereadLocked()
	}
	return t.value
}

// Reread reads the file whatever its times say.
func (t *Token) Reread() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rereadLocked()
}

func (t *Token) rereadLocked() error {
	f, err := os.Open(t.path)
	if err != nil {
		return fmt.Errorf("--broker-token-file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("--broker-token-file: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return fmt.Errorf("--broker-token-file: %w", err)
	}
	value, err := parseToken(string(text))
	if err != nil {
		return fmt.Errorf("--broker-token-file %s: %w", t.path, err)
	}
	t.read = stateOf(info)
	if value != t.value {
		t.value, t.previous = value, t.value
	}
	return nil
}

func stateOf(info os.FileInfo) fileState {
	return fileState{modified: info.ModTime(), size: info.Size(), file: info}
}

// parseToken takes the blanks around the token away. Its errors do not quote it.
func parseToken(text string) (string, error) {
	if len(text) > maxToken {
		return "", fmt.Errorf("is larger than %d bytes: want the token alone", maxToken)
	}
	token := strings.TrimSpace(text)
	if token == "" {
		return "", fmt.Errorf("is empty: want the token alone")
	}
	for _, b := range []byte(token) {
		if b <= ' ' || b > '~' {
			return "", fmt.Errorf("holds more than a token (a blank, a control character or a letter beyond ASCII): want the token alone")
		}
	}
	return token, nil
}

// Hide takes the token out of a text. It is safe on nil.
func (t *Token) Hide(text string) string {
	if t == nil {
		return text
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, secret := range []string{t.value, t.previous} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[token]")
		}
	}
	return text
}
