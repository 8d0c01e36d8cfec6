package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

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
