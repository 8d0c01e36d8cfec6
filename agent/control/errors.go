package control

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Exit codes of the public contract.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2 // usage or settings
	ExitRefused = 3 // refused for safety
	ExitLeft    = 4 // drained with topics or their cleanup left
)

// ExitError is an error that decides the exit code of the command. Its text is
// that of Err.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// Code is the exit code of an error; nil: it is done.
func Code(err error) int {
	if exit, decides := errors.AsType[*ExitError](err); decides {
		return exit.Code
	}
	if err != nil {
		return ExitFailed
	}
	return ExitDone
}

// UsageError says that a setting or a request cannot work.
func UsageError(err error) error { return &ExitError{Code: ExitUsage, Err: err} }

// Refused says why something is not done, for safety.
func Refused(format string, args ...any) error {
	return &ExitError{Code: ExitRefused, Err: fmt.Errorf(format, args...)}
}

// Plain is a text of others in one line that a terminal only shows: what is no graphic
// character, such as a line break or an escape sequence, stands there as Go quotes it.
func Plain(s string) string {
	s = strings.ToValidUTF8(s, string(unicode.ReplacementChar))
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToGraphic(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool { return !unicode.IsGraphic(r) }

// Plural is so many of what the noun says: 1 topic, 2 topics.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
