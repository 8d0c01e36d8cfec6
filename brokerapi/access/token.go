package access

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"
)

// maxToken is far above any token that a server's header limit lets through, in bytes.
const maxToken = 16 << 10

// Token is a secret of one line on disk, read anew whenever it is used. It is safe for
// concurrent use, and on nil: there is none.
type Token struct {
	flag, path string

	mu       sync.Mutex
	value    string
	previous string // what an answer may still quote
}

// OpenToken reads the file that the flag names; nil: it names none.
func OpenToken(flag, path string) (*Token, error) {
	if path == "" {
		return nil, nil
	}
	t := &Token{flag: flag, path: path}
	return t, t.read()
}

// Token reads the bearer token, if there is one.
func (f Files) Token() (*Token, error) { return OpenToken(f.flag()+"-token-file", f.TokenFile) }

// Path is the file.
func (t *Token) Path() string { return t.path }

// Current is the token as the file has it now. When the file cannot be read, as while
// somebody replaces it, it is the last one that could.
func (t *Token) Current() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.read()
	return t.value
}

// read takes the blanks around the token away. Its errors do not quote it.
func (t *Token) read() error {
	text, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("%s: %w", t.flag, err)
	}
	value := strings.TrimSpace(string(text))
	switch {
	case value == "":
		return fmt.Errorf("%s %s: is empty: want the token or password alone", t.flag, t.path)
	case len(value) > maxToken, strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%s %s: holds more than a token or password (several lines, or more than %d bytes): want the token or password alone", t.flag, t.path, maxToken)
	}
	if value != t.value {
		t.value, t.previous = value, t.value
	}
	return nil
}

// Hide takes the token out of a text.
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
