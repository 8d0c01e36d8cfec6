package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"holdfast/agent"
)

func runVerb() *verb {
	return &verb{
		name:   "run",
		args:   "[-- CMD ARG…]",
		starts: true,
		short:  "the sidecar: keep one broker attached",
		long: "Runs beside one broker until SIGTERM or SIGINT. 'holdfast check' takes the same settings, says\n" +
			"whether they can work and writes nothing.\n\n" +
			"With -- CMD ARG… it also starts the broker, in the foreground and in a process group of its own,\n" +
			"starts it again by --broker-restart, and stops it. SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGWINCH\n" +
			"are passed on to it. The broker of a sidecar that was killed goes on and is taken over.\n\n" +
			"SIGHUP and 'holdfast reload' have it read the settings anew and apply, all or none:\n" +
			strings.Join(wrap(strings.Fields(strings.Join(agent.LiveSettings(), ", ")+"."), 98), "\n") + "\n\n" +
			"Every setting can also be given in the environment (--lease-ttl is HOLDFAST_LEASE_TTL) and in\n" +
			"the YAML file of --config (lease-ttl). A flag wins over the environment, that over the file.\n" +
			"Durations have a unit: 250ms, 32s, 5m.",
		flags: settingOptions(),
		do: func(ctx context.Context, v *verb, io streams, command []string) error {
			c, err := v.flags.loadFor(command)
			if err != nil {
				return err
			}
			lines := newLogWriter(io.err)
			defer lines.close()
			log, level := newLogger(lines, c, isTerminal(io.err))
			return agent.Run(ctx, c, log, level, version())
		},
	}
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

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func healthcheckVerb() *verb {
	timeout := &option{name: "timeout", arg: "DURATION", help: "how long to wait for the answer", def: "3s"}
	return &verb{
		name:  "healthcheck",
		short: "exit 0 when clients may be sent here",
		long:  "Asks /ready of the sidecar that runs here, for images without a shell or curl.",
		flags: append(options{timeout}, settingOptions("probe-listen")...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			bound, err := timeout.duration()
			if err != nil {
				return err
			}
			c, err := v.flags.load("probe-listen")
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			return askReady(ctx, io.out, "http://"+reachable(c.ProbeListen)+"/ready")
		},
	}
}

func askReady(ctx context.Context, out io.Writer, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("make request for %s: %w", url, err)
	}
	client := http.Client{
		Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: no answer from %s: is 'holdfast run' running here? give --probe-listen", url)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: not ready: %s answered %s: see 'holdfast status'", url, resp.Status)
	}
	if _, err := fmt.Fprintf(out, "ready (%s in %s)\n", url, time.Since(start).Round(time.Millisecond)); err != nil {
		return fmt.Errorf("print answer: %w", err)
	}
	return nil
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
