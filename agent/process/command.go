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
