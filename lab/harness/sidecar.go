package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// SidecarOptions says how a sidecar is started.
type SidecarOptions struct {
	Name      string   // of the process and its directory; default: the broker's name and "-sidecar"
	Broker    *NATS    // gives place, admin and monitor URL; nil: say all in Flags
	Place     Place    // used if Broker is nil
	Endpoints []string // of etcd, as seen from the place
	Flags     []string // added at the end, so they win
	Binary    string   // default: built by the lab
}

// Sidecar is one `holdfast run`. Its state directory and ports survive its lives.
type Sidecar struct {
	*Process
	StateDir      string
	ControlSocket string
	ProbePort     int
	WebPort       int
	binary        string
	probe         *http.Client
	control       *http.Client
}

// NewSidecar prepares a sidecar without starting it.
func (l *Lab) NewSidecar(o SidecarOptions) (*Sidecar, error) {
	if o.Broker != nil {
		o.Place = o.Broker.Place
		if o.Name == "" {
			o.Name = o.Broker.Name + "-sidecar"
		}
	}
	if o.Binary == "" {
		bin, err := Build(Holdfast)
		if err != nil {
			return nil, err
		}
		o.Binary = bin
	}
	dir := filepath.Join(l.Dir, o.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare sidecar %s: %w", o.Name, err)
	}
	ports, err := l.ports(2)
	if err != nil {
		return nil, fmt.Errorf("prepare sidecar %s: %w", o.Name, err)
	}
	// Not in the state directory: tests make that one read-only or remove it.
	socket := filepath.Join(l.Dir, o.Name+".sock")
	s := &Sidecar{
		StateDir: dir, ControlSocket: socket,
		ProbePort: ports[0], WebPort: ports[1], binary: o.Binary,
		probe: httpClient(o.Place.DialContext, 2*time.Second),
		control: httpClient(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}, 10*time.Second),
	}
	args := []string{"run",
		"--state-dir", dir,
		"--control-socket", socket,
		"--probe-listen", fmt.Sprintf("127.0.0.1:%d", s.ProbePort),
		"--web-listen", fmt.Sprintf("127.0.0.1:%d", s.WebPort),
		"--log-format", "text",
	}
	if len(o.Endpoints) > 0 {
		args = append(args, "--etcd-endpoints", strings.Join(o.Endpoints, ","))
	}
	if o.Broker != nil {
		args = append(args, "--driver", "nats", "--broker-admin", o.Broker.URL(), "--nats-monitor", o.Broker.MonitorURL())
	}
	s.Process = l.newProcess(o.Name, o.Place, o.Binary, append(args, o.Flags...))
	l.own(s.Process)
	l.onClose(func() error { s.probe.CloseIdleConnections(); s.control.CloseIdleConnections(); return nil })
	return s, nil
}

// StartSidecar prepares and starts a sidecar. It does not wait for anything.
func (l *Lab) StartSidecar(o SidecarOptions) (*Sidecar, error) {
	s, err := l.NewSidecar(o)
	if err != nil {
		return nil, err
	}
	return s, s.Start()
}

// Start starts the sidecar, again if need be, and does not wait.
func (s *Sidecar) Start() error { return s.start() }

// SetFlags adds flags for the next start; they win over earlier ones.
func (s *Sidecar) SetFlags(flags ...string) { s.args = append(s.args, flags...) }

// Args is the command line, without the program.
func (s *Sidecar) Args() []string { return s.args }

// ProbeURL is the base of the probes inside the sidecar's place.
func (s *Sidecar) ProbeURL() string { return fmt.Sprintf("http://127.0.0.1:%d", s.ProbePort) }

// WebURL is the base of metrics and status page inside the sidecar's place.
func (s *Sidecar) WebURL() string { return fmt.Sprintf("http://127.0.0.1:%d", s.WebPort) }

// Probe asks one probe, such as /ready.
func (s *Sidecar) Probe(ctx context.Context, path string) (code int, body string, err error) {
	code, body, err = httpGet(ctx, s.probe, s.ProbeURL()+path)
	if err != nil {
		return 0, "", fmt.Errorf("probe %s of %s: %w", path, s.Name, err)
	}
	return code, body, nil
}

// Ready says whether /ready answers 200. No answer is not ready.
func (s *Sidecar) Ready(ctx context.Context) bool {
	code, _, err := s.Probe(ctx, "/ready")
	return err == nil && code == http.StatusOK
}

// Live says whether /live answers 200.
func (s *Sidecar) Live(ctx context.Context) bool {
	code, _, err := s.Probe(ctx, "/live")
	return err == nil && code == http.StatusOK
}

// Metrics reads /metrics.
func (s *Sidecar) Metrics(ctx context.Context) (string, error) {
	code, body, err := httpGet(ctx, s.probe, s.WebURL()+"/metrics")
	if err != nil {
		return "", fmt.Errorf("read metrics of %s: %w", s.Name, err)
	}
	if code != http.StatusOK {
		return "", fmt.Errorf("read metrics of %s: status %d: %s", s.Name, code, body)
	}
	return body, nil
}

// Status asks the control socket, which no network cut reaches.
func (s *Sidecar) Status(ctx context.Context) (Status, error) {
	var st Status
	return st, s.ask(ctx, "/v1/status", func(r io.Reader) error { return json.NewDecoder(r).Decode(&st) })
}

// Topics asks for the topics, in whatever order the sidecar gives them.
func (s *Sidecar) Topics(ctx context.Context) ([]Topic, error) {
	var topics []Topic
	return topics, s.ask(ctx, "/v1/topics", func(r io.Reader) error { return json.NewDecoder(r).Decode(&topics) })
}

// Events reads the journal, of a sidecar that has ended by the verb.
func (s *Sidecar) Events(ctx context.Context) (events []Event, err error) {
	read := func(r io.Reader) error {
		for d := json.NewDecoder(r); ; {
			var e Event
			if err := d.Decode(&e); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			events = append(events, e)
		}
	}
	if s.Running() {
		err = s.ask(ctx, "/v1/events", read)
		return events, err
	}
	res, err := RunHoldfast(ctx, s.binary, "events", "--state-dir", s.StateDir, "--output", "json")
	if err == nil {
		err = read(strings.NewReader(res.Stdout))
	}
	return events, err
}

func (s *Sidecar) ask(ctx context.Context, path string, read func(io.Reader) error) error {
	code, body, err := httpGet(ctx, s.control, "http://sidecar"+path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d: %s", code, strings.TrimSpace(body))
	}
	if err == nil {
		err = read(strings.NewReader(body))
	}
	if err != nil {
		return fmt.Errorf("ask %s for %s: %w", s.Name, path, err)
	}
	return nil
}

// Ask reads any path of the control socket.
func (s *Sidecar) Ask(ctx context.Context, path string) (body string, err error) {
	err = s.ask(ctx, path, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		body = string(b)
		return err
	})
	return body, err
}

// Await polls the status until ok holds. The error holds the last status, and the
// end of the log if the sidecar ended.
func (s *Sidecar) Await(ctx context.Context, bound time.Duration, what string, ok func(Status) bool) (Status, error) {
	var last Status
	err := awaitProcess(ctx, s.Process, bound, what+" of "+s.Name, func(ctx context.Context) (bool, string) {
		st, err := s.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		last = st
		return ok(st), st.String()
	})
	return last, err
}

// AwaitReady polls /ready until it answers 200.
func (s *Sidecar) AwaitReady(ctx context.Context, bound time.Duration) error {
	return awaitProcess(ctx, s.Process, bound, s.Name+" to be ready", func(ctx context.Context) (bool, string) {
		code, body, err := s.Probe(ctx, "/ready?full=1")
		if err != nil {
			return false, err.Error()
		}
		return code == http.StatusOK, body
	})
}

// AwaitNotReady polls /ready until it answers something else than 200.
func (s *Sidecar) AwaitNotReady(ctx context.Context, bound time.Duration) error {
	return Await(ctx, bound, s.Name+" not to be ready", func(ctx context.Context) (bool, string) {
		return !s.Ready(ctx), "ready"
	})
}

// Result is the outcome of a verb of the command line.
type Result struct {
	Stdout, Stderr string
	Exit           int
}

// Verb runs a verb of the command line against this sidecar's control socket.
// A non-zero exit code is a Result, not an error.
func (s *Sidecar) Verb(ctx context.Context, verb string, args ...string) (Result, error) {
	return RunHoldfast(ctx, s.binary, append([]string{verb, "--control-socket", s.ControlSocket}, args...)...)
}

// Activate runs `holdfast activate`.
func (s *Sidecar) Activate(ctx context.Context, reason string) error {
	res, err := s.Verb(ctx, "activate", "--reason", reason)
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fmt.Errorf("activate %s: exit code %d: %s", s.Name, res.Exit, strings.TrimSpace(res.Stderr))
	}
	return nil
}

// RunHoldfast runs the program to its end, on the host.
func RunHoldfast(ctx context.Context, binary string, args ...string) (Result, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		return Result{}, fmt.Errorf("run holdfast %s: %w", args[0], errors.Join(err, ctx.Err()))
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}, nil
}

// httpClient makes a client that keeps few connections and trusts nobody's proxy.
func httpClient(dial func(context.Context, string, string) (net.Conn, error), timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:   timeout,
		Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 4, DisableCompression: true},
	}
}
