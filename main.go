// Command holdfast keeps an unmodified message broker attached to its cluster,
// and keeps clients away from it when it is not.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"holdfast/agent/control"
	"holdfast/agent/guard"
)

func main() {
	os.Exit(run(os.Args, os.Stdout, os.Stderr))
}

// run is the whole command: args with the program's name first, the exit code of
// the public contract as its result. The first SIGINT or SIGTERM ends the work
// in an orderly way, the second one ends the process.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[1] == guard.Verb {
		// No verb for people: before anything that would need memory or end by a signal.
		return report(guard.Main(args[2:], stderr), stderr)
	}
	// A log or an answer that nobody reads any more must not end us: writes fail instead. It is
	// caught and not read, rather than ignored: whatever we start would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	out := &output{to: stdout}
	app := newApp(out, stderr)
	err := app.RunContext(ctx, flagsFirst(app, args))
	if err == nil || err == out.err {
		err = out.failure()
	}
	return report(err, stderr)
}

// report prints the error, one line for each cause, and returns its exit code.
func report(err error, stderr io.Writer) int {
	if err == nil {
		return control.ExitDone
	}
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintln(stderr, "holdfast: "+control.Plain(line))
		}
	}
	return control.Code(err)
}

// usage makes an error of wrong usage or settings.
func usage(format string, args ...any) error {
	return &control.ExitError{Code: control.ExitUsage, Err: fmt.Errorf(format, args...)}
}
