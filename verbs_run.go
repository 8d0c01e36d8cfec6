package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"holdfast/agent"
	"holdfast/agent/config"
	"holdfast/agent/control"
)

// The verbs that stand beside a broker: as its sidecar, before its start, and in its container.

func runSidecar(c call) error {
	lines := control.NewLines(c.App.ErrWriter, func(n int64) {
		fmt.Fprintf(c.App.ErrWriter, "holdfast: %d lines of the log were dropped: nobody took them\n", n)
	})
	defer lines.Close()
	log, level := newLogger(lines, c.settings, isTerminal(c.App.ErrWriter))
	return agent.Run(c.Context, c.settings, log, level, version())
}

// newLogger writes to w, in text by default if people read it. The level and format have
// been validated; the level can be changed later.
func newLogger(w io.Writer, c config.Config, people bool) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(c.LogLevel)) // validated; info otherwise
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // JSON would have bare nanoseconds
		}
		return a
	}}
	if c.LogFormat == "text" || c.LogFormat == "" && people {
		return slog.New(slog.NewTextHandler(w, o)), level
	}
	return slog.New(slog.NewJSONHandler(w, o)), level
}

func healthcheck(c call) error {
	address := c.settings.ProbeListen
	if strings.HasPrefix(address, ":") {
		address = "127.0.0.1" + address
	}
	url := "http://" + address + "/ready" // an address that means every one is this host's
	start := time.Now()
	req, err := http.NewRequestWithContext(c.Context, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("healthcheck: %w: give --probe-listen", err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req) // by no proxy, and to nowhere else
	if err != nil {
		return fmt.Errorf("healthcheck: --probe-listen %s: no answer from %s: is 'holdfast run' running here, with this --probe-listen?", c.settings.ProbeListen, url)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: not ready: %s answered %s: see 'holdfast status'", url, resp.Status)
	}
	c.out().line("ready (%s in %s)", url, time.Since(start).Round(time.Millisecond))
	return nil
}

func gate(c call) (err error) {
	bound := c.Duration("wait")
	if bound == 0 {
		return usage("--wait: required: give how long the broker's start may wait, such as 60s")
	}
	program, command := "", c.Args().Slice()
	if len(command) > 0 {
		if program, err = exec.LookPath(command[0]); err != nil {
			return usage("gate: start the broker: %w: give the path of an executable file after --", err)
		}
	}
	err = c.sidecar().AwaitGate(c.Context, bound, func(why error) {
		report(fmt.Errorf("gate: waiting up to %s for a sidecar that lets the broker start: %w", bound, why), c.App.ErrWriter)
	})
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("gate: interrupted before a sidecar let the broker start: the broker is not started")
	case err != nil:
		return fmt.Errorf("gate: no sidecar let the broker start within %s, so it is not started: %w", bound, err)
	case program == "":
		return nil
	}
	return fmt.Errorf("gate: start the broker %s: %w", program, syscall.Exec(program, command, os.Environ()))
}

// install copies the running program to a file. Whoever looks at it sees what was there
// before, or all of it.
func install(c call) error {
	file := c.Args().First()
	from, err := os.Open("/proc/self/exe") // its own path may have been replaced meanwhile
	if err != nil {
		return fmt.Errorf("install: open this program: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(file), ".holdfast-*")
	if err != nil {
		return fmt.Errorf("install %s: %w: give a file in a directory that can be written", file, err)
	}
	_, err = io.Copy(to, from)
	// Closed before it is renamed: a file that is open for writing cannot be executed.
	if err = errors.Join(err, to.Chmod(0o555), to.Close()); err == nil {
		err = os.Rename(to.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", file, errors.Join(err, os.Remove(to.Name())))
	}
	c.out().line("installed %s (%s)", file, version())
	return nil
}
