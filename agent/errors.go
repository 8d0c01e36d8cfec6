package agent

import (
	"errors"
	"io/fs"
	"strconv"
)

// Exit codes of the public contract.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2 // usage or settings
	ExitRefused = 3 // refused for safety
)

// ExitError is an error that decides the exit code of the command. Its text is
// that of Err.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return "exit code " + strconv.Itoa(e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// reason is the cause of a file error without the path, which the message has.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
