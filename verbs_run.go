package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

// The verbs that stand beside a broker: as its sidecar, before its start, and in its container.

func runVerb() *cli.Command {
	return verb("run", func(c *cli.Context) error {
		settings, err := load(c)
		if err != nil {
			return err
		}
		lines := newLogWriter(c.App.ErrWriter)
		defer lines.close()
		log, level := newLogger(lines, settings, isTerminal(c.App.ErrWriter))
		return agent.Run(c.Context, settings, log, level, version())
	}, allSettings()...)
}

// newLogger writes to w, in text by default if people read it. The level and format have
// been validated; the level can be changed later.
func newLogger(w io.Writer, c agent.Config, people bool) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(c.LogLevel)) // validated; info otherwise
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String()) // JSON would have bare nanoseconds
		}
		return a
	}}
	format := c.LogFormat
	if format == "" && people {
		format = "text"
	}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, o)), level
	}
	return slog.New(slog.NewJSONHandler(w, o)), level
}

func healthcheckVerb() *cli.Command {
	settings := []string{"probe-listen"}
	return verb("healthcheck", func(c *cli.Context) error {
		found, err := load(c, settings...)
		if err != nil {
			return err
		}
		url := "http://" + reachable(found.ProbeListen) + "/ready"
		client := http.Client{
			Timeout:       c.Duration("timeout"),
			Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		start := time.Now()
		req, err := http.NewRequestWithContext(c.Context, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("healthcheck: %w: give --probe-listen", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("healthcheck: no answer from %s: is 'holdfast run' running here? give --probe-listen", url)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("healthcheck: not ready: %s answered %s: see 'holdfast status'", url, resp.Status)
		}
		out(c).line("ready (%s in %s)", url, time.Since(start).Round(time.Millisecond))
		return nil
	}, someSettings(settings, durationFlag("timeout", "how long to wait for the answer", 3*time.Second, time.Millisecond))...)
}

// reachable turns an address to listen on into one to connect to.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}

func gateVerb() *cli.Command {
	wait := durationFlag("wait", "how long to wait for a sidecar that says so; less than what the unit has for its start", 0, time.Millisecond)
	wait.DefaultText = "required"
	return verb("gate", func(c *cli.Context) (err error) {
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
		settings, err := load(c, socketSettings...)
		if err != nil {
			return err
		}
		err = agent.NewClient(settings.ControlSocket, settings.StateDir).AwaitGate(c.Context, bound, func(why error) {
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
	}, someSettings(socketSettings, wait)...)
}

func installVerb() *cli.Command {
	return verb("install", func(c *cli.Context) error {
		file := c.Args().First()
		if err := install(file); err != nil {
			return err
		}
		out(c).line("installed %s (%s)", file, version())
		return nil
	})
}

// install copies the running program to file. Whoever looks at file sees what was there
// before, or all of it.
func install(file string) (err error) {
	from, err := os.Open("/proc/self/exe") // its own path may have been replaced meanwhile
	if err != nil {
		return fmt.Errorf("install: open this program: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(file), ".holdfast-*")
	if err != nil {
		return fmt.Errorf("install %s: %w: give a file in a directory that can be written", file, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("install %s: %w", file, errors.Join(err, os.Remove(to.Name())))
		}
	}()
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(0o555)
	}
	// Closed before it is renamed: a file that is open for writing cannot be executed.
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), file)
}
