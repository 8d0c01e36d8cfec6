package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	// outputBound is how much a stop command may write to be quoted in an error.
	outputBound = 1 << 10
	// pipeBound is how long a stop command's descendants may hold its output open.
	pipeBound = 100 * time.Millisecond
)

// SplitCommand splits a command line into words: at blanks, with 'single' and
// "double" quotes and backslashes as in a shell. Nothing is expanded: no variables,
// globs, pipes or substitutions. Who needs those writes sh -c '…'.
func SplitCommand(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			if quote == '"' && r != '"' && r != '\\' {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\n\r", r):
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	case escaped:
		return nil, errors.New("a backslash at the end")
	case inWord:
		words = append(words, word.String())
	}
	if len(words) > 0 && words[0] == "" {
		return nil, errors.New("the name of the program is empty")
	}
	return words, nil
}

func checkCommand(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		var missing *exec.Error
		if errors.As(err, &missing) {
			err = missing.Err
		}
		return fmt.Errorf("--stop-command: %s: %w: give the path of a program that is there and executable", program, err)
	}
	return nil
}

// runCommand runs a program to its end, at most as long as ctx lasts: then it is
// killed with its process group. The error quotes the last of what it wrote.
func runCommand(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // not reaped yet, so the number is its own
	cmd.WaitDelay = pipeBound
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("has not ended in time: %w", ctx.Err())
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it ended well and left something in the background
	}
	if err == nil {
		return nil
	}
	if said := out.String(); said != "" {
		return fmt.Errorf("stop command %s: %w: %s", argv[0], err, said)
	}
	return fmt.Errorf("stop command %s: %w", argv[0], err)
}

// tail keeps the last bytes written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - outputBound; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	kept := bytes.TrimSpace(t.kept)
	for len(kept) > 0 && !utf8.RuneStart(kept[0]) {
		kept = kept[1:]
	}
	return strings.Join(strings.Fields(string(kept)), " ")
}
