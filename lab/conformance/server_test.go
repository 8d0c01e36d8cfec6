package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"holdfast/brokerapi"
	"holdfast/brokerapi/nats"
	"holdfast/lab/harness"
)

// startBound is how long a server may take until it answers.
const startBound = harness.Patience

// server is one nats-server process and an ordinary client of it.
type server struct {
	bin      string
	args     []string // beyond those that every server has
	name     string
	dir      string
	admin    string // host:port
	monitor  string
	subjects map[string]string // topic to subject, where it is not ns.name
	cmd      *exec.Cmd
	log      *os.File
}

// launch starts a server that ends with the test. Without other args it has JetStream.
func launch(t *testing.T, bin string, args ...string) *server {
	t.Helper()
	return launchNamed(t, bin, "n1", args...)
}

func launchNamed(t *testing.T, bin, name string, args ...string) *server {
	t.Helper()
	s := &server{bin: bin, name: name, dir: t.TempDir(), admin: freeAddress(t), monitor: freeAddress(t), args: args}
	if len(args) == 0 {
		s.args = []string{"-js", "-sd", s.dir}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	s.log = log
	t.Cleanup(func() {
		if s.cmd != nil {
			s.Kill(t)
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("nats-server said:\n%s", text)
		}
		log.Close()
	})
	s.Start(t)
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, release, err := harness.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func port(address string) string {
	_, p, _ := net.SplitHostPort(address)
	return p
}

func (s *server) Start(t *testing.T) {
	t.Helper()
	args := []string{"-a", "127.0.0.1", "-p", port(s.admin), "-m", port(s.monitor)}
	if s.name != "" {
		args = append(args, "-n", s.name)
	}
	s.cmd = exec.Command(s.bin, append(args, s.args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", s.bin, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.answers()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("nats-server does not answer within %v: %v", startBound, err)
		case <-tick.C:
		}
	}
}

func (s *server) answers() error {
	fast := http.Client{Timeout: time.Second}
	defer fast.CloseIdleConnections()
	resp, err := fast.Get("http://" + s.monitor + "/healthz?js-enabled-only=true")
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("healthz answers %s", resp.Status)
	}
	nc, err := client.Connect("nats://"+s.admin, client.Timeout(time.Second))
	if err != nil {
		return err
	}
	nc.Close()
	return nil
}

func (s *server) Kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatalf("kill: %v", err)
	}
	_ = s.cmd.Wait() // "signal: killed"
	s.cmd = nil
}

// Freeze waits until all threads have stopped: the signal alone returns earlier.
func (s *server) Freeze(t *testing.T) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
	for {
		err := unix.Waitid(unix.P_PID, s.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatalf("wait for the stop: %v", err)
		}
	}
}

func (s *server) Thaw(t *testing.T) { s.signal(t, syscall.SIGCONT) }

func (s *server) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%v: %v", sig, err)
	}
}

func (s *server) config() nats.Config {
	return nats.Config{AdminURL: "nats://" + s.admin, MonitorURL: "http://" + s.monitor, BrokerID: s.name, Logger: slog.New(slog.DiscardHandler)}
}

func (s *server) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	b, err := nats.New(s.config())
	if err != nil {
		t.Fatalf("open the driver: %v", err)
	}
	return b
}

// with runs use with a JetStream client of its own.
func (s *server) with(use func(context.Context, jetstream.JetStream) error) error {
	nc, err := client.Connect("nats://"+s.admin, client.NoReconnect())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	return use(ctx, js)
}

func (s *server) subject(topic string) string {
	if subject, ok := s.subjects[topic]; ok {
		return subject
	}
	return strings.ReplaceAll(topic[1:], "/", ".")
}

func (s *server) Publish(topic string, data []byte) error {
	return s.with(func(ctx context.Context, js jetstream.JetStream) error {
		_, err := js.Publish(ctx, s.subject(topic), data, jetstream.WithRetryAttempts(0))
		return err
	})
}

func (s *server) Count(topic string) (n int, err error) {
	err = s.with(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, streamOf(topic))
		if err != nil {
			return err
		}
		n = int(stream.CachedInfo().State.Msgs)
		return nil
	})
	return n, err
}

// streamOf says again, in other words, how the driver names streams.
func streamOf(topic string) string {
	ns, name, _ := strings.Cut(topic[1:], "/")
	var out strings.Builder
	out.WriteString("hf")
	for _, part := range []string{ns, name} {
		out.WriteByte('+')
		for _, c := range []byte(part) {
			if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", c) >= 0 {
				out.WriteByte(c)
			} else {
				fmt.Fprintf(&out, "=%02X", c)
			}
		}
	}
	return out.String()
}

func (s *server) AddForeign(t *testing.T) func() error {
	t.Helper()
	names := []string{
		"orders",              // an ordinary one
		"hf+orders",           // no namespace
		"hf+a+b+c",            // one part too many
		"hf+default+a=2e",     // lower-case hex
		"hf+default+=61",      // a letter written as hex
		"hf+default+a=2Fb",    // a slash in the name
		"hf++a",               // empty namespace
		"HF+default+a",        // other prefix
		"foreign-and-parked",  // its subject is under ours
		"hf+default+b=0",      // cut short
		"hf+default+orders=",  // cut short
		"hf+default+orders=+", // both
	}
	read := func() (map[string]string, error) {
		got := map[string]string{}
		err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
			for _, name := range names {
				stream, err := js.Stream(ctx, name)
				if err != nil {
					return fmt.Errorf("read %s: %w", name, err)
				}
				info := stream.CachedInfo()
				text, err := json.Marshal([]any{info.Config, info.Created, info.State.Msgs})
				if err != nil {
					return err
				}
				got[name] = string(text)
			}
			return nil
		})
		return got, err
	}
	err := s.with(func(ctx context.Context, js jetstream.JetStream) error {
		for i, name := range names {
			subject := fmt.Sprintf("foreign.%d", i)
			if name == "foreign-and-parked" {
				subject = "_HOLDFAST.quiesced." + name
			}
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
				return fmt.Errorf("make %s: %w", name, err)
			}
			if _, err := js.Publish(ctx, subject, []byte("theirs")); err != nil {
				return fmt.Errorf("publish to %s: %w", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before, err := read()
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		after, err := read()
		if err != nil {
			return err
		}
		for name := range before {
			if after[name] != before[name] {
				return fmt.Errorf("stream %s changed from %s to %s", name, before[name], after[name])
			}
		}
		return nil
	}
}
