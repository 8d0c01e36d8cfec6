package check

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/agent/control"
	etcd "holdfast/cluster/memory"
)

const deadPort = "127.0.0.1:1"

func TestWhatIsNotEtcdIsNamed(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	go func() {
		for c, err := deaf.Accept(); err == nil; c, err = deaf.Accept() {
			_ = c.(*net.TCPConn).CloseWrite() // a Close may meet what is just being written
			go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	plain := serveEtcd(t, 7)
	for _, row := range []struct{ name, endpoint, want string }{
		{"TLS to a plain etcd", strings.Replace(plain, "http:", "https:", 1), "no connection: tls: first record does not look like a TLS handshake: no TLS is spoken there: write http://"},
		{"a web server", web.URL, "etcd is out of reach: what answers speaks HTTP/1.1: that is not etcd's client port (2379)"},
		{"TLS to a web server", strings.Replace(web.URL, "http:", "https:", 1), "no connection: tls: first record does not look like a TLS handshake: no TLS is spoken there: write http://"},
		{"what closes each connection", "http://" + deaf.Addr().String(), "etcd is out of reach: it takes connections and does not greet as etcd's client port (2379) does"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := natsDefaults()
			c.EtcdEndpoints = []string{row.endpoint}
			found := Etcd(t.Context(), c, "", slog.New(slog.DiscardHandler))
			if err := found[0].Err; err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v\nwant %s", err, row.want)
			}
		})
	}
}

// serveEtcd puts an etcd behind a socket until the test ends.
func serveEtcd(t *testing.T, clusterID uint64, options ...grpc.ServerOption) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	services := grpc.NewServer(options...)
	etcd.New(etcd.Config{ClusterID: clusterID}).Register(services)
	var serving sync.WaitGroup
	serving.Go(func() { _ = services.Serve(listener) })
	t.Cleanup(func() { services.Stop(); serving.Wait() })
	return "http://" + listener.Addr().String()
}

// What stands between us and etcd may carry some calls and not others.
func TestCheckRenewsALeaseThroughEachEndpoint(t *testing.T) {
	well := serveEtcd(t, 0xaa)
	half := serveEtcd(t, 0xaa, grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if strings.HasSuffix(i.FullMethod, "/LeaseKeepAlive") {
			return status.Error(codes.Canceled, "context canceled")
		}
		return next(srv, s)
	}))
	dead := "http://" + deadPort
	carries := half + " carries reads and no renewal: renew: "
	for _, tt := range []struct {
		name      string
		endpoints []string
		text, err string
		warn      bool
	}{
		{"well", []string{well}, "through 1 of 1 endpoints that answer", "", false},
		{"half", []string{half}, "", carries, false},
		{"one half", []string{half, well}, "through 1 of 2 endpoints that answer; " + carries, "", true},
		{"one dead", []string{dead, well}, "through 1 of 1 endpoints that answer", "", false},
		{"one dead, one half", []string{dead, half}, "", carries, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := natsDefaults()
			c.EtcdEndpoints = tt.endpoints
			f := renewalFinding(c, askEach(t.Context(), c, "-", slog.New(slog.DiscardHandler)))
			said := ""
			if f.Err != nil {
				said = f.Err.Error()
			}
			if (tt.err == "") != (f.Err == nil) || !strings.Contains(said, tt.err) || !strings.Contains(f.Text, tt.text) || f.Warn != tt.warn {
				t.Errorf("%v %s\n%s", f.Warn, f.Text, said)
			}
		})
	}
}

func TestCheckRefusesEndpointsOfDifferentClusters(t *testing.T) {
	ours, theirs := serveEtcd(t, 0xaa), serveEtcd(t, 0xbb)
	c := natsDefaults()
	c.EtcdEndpoints = []string{ours, theirs}
	want := fmt.Sprintf(`--etcd-endpoints "%s,%s": %s is of cluster aa and %s is of cluster bb: give the members of one etcd cluster only`, ours, theirs, ours, theirs)
	f := Etcd(t.Context(), c, "", slog.New(slog.DiscardHandler))[0]
	var exit *control.ExitError
	if !errors.As(f.Err, &exit) || exit.Code != control.ExitUsage || f.Err.Error() != want {
		t.Errorf("got  %v\nwant %s", f.Err, want)
	}
	c.EtcdEndpoints = []string{ours, serveEtcd(t, 0xaa)}
	if f := Etcd(t.Context(), c, "", slog.New(slog.DiscardHandler))[0]; f.Err != nil || !strings.Contains(f.Text, "2 of 2 endpoints answer") {
		t.Errorf("one cluster: %v %s", f.Err, f.Text)
	}
}

func TestVerdictPutsSettingsBeforeSafetyBeforeFailure(t *testing.T) {
	failed := Finding{What: "etcd", Err: errors.New("away")}
	unsafe := Finding{What: "timing", Err: control.Refused("too tight")}
	wrong := Finding{What: "broker", Err: control.UsageError(errors.New("another broker"))}
	fine := Finding{What: "data dir", Text: "/d"}
	for _, tt := range []struct {
		name string
		fs   []Finding
		want int
	}{
		{"all is well", []Finding{fine}, control.ExitDone},
		{"failed", []Finding{fine, failed}, control.ExitFailed},
		{"failed and unsafe", []Finding{failed, unsafe}, control.ExitRefused},
		{"all of them", []Finding{wrong, failed, unsafe}, control.ExitUsage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, err := control.ExitDone, Verdict(tt.fs)
			var exit *control.ExitError
			if errors.As(err, &exit) {
				code = exit.Code
			}
			if code != tt.want || (err == nil) != (tt.want == control.ExitDone) {
				t.Errorf("code %d, error %v", code, err)
			}
		})
	}
}

func TestCheckTriesTheStateDirectoryAndLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	c := natsDefaults()
	c.StateDir = filepath.Join(parent, "a", "b")
	if f := StateDir(c); f.Err != nil || f.Text != c.StateDir+"; to be created" {
		t.Errorf("not there yet: %+v", f)
	}
	c.StateDir = parent
	if f := StateDir(c); f.Err != nil || f.Text != parent {
		t.Errorf("there: %+v", f)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	c.StateDir = "/proc/xx"
	var exit *control.ExitError
	if f := StateDir(c); !errors.As(f.Err, &exit) || exit.Code != control.ExitUsage || !strings.HasPrefix(f.Err.Error(), "--state-dir /proc/xx: ") {
		t.Errorf("impossible: %+v", f)
	}
}

// Root reads what the user of the sidecar may not, so a check as that user would fail where the unit
// does not: it is asked for only where that user may read the same files.
func TestRootIsToldWhatWasNotTriedAndHowItIs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root is told")
	}
	broker := exec.Command("sleep", "300")
	broker.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = broker.Process.Kill(), broker.Wait() }()
	dir := t.TempDir()
	c := natsDefaults()
	c.BrokerPIDFile, c.EtcdPasswordFile = filepath.Join(dir, "pid"), filepath.Join(dir, "password")
	if err := os.WriteFile(c.BrokerPIDFile, fmt.Append(nil, broker.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{
		0o644: "; the broker's user is nobody: 'runuser -u nobody -- holdfast check …'",
		0o600: "; the broker's user is nobody: it may not read " + c.EtcdPasswordFile + ", of which a unit has a copy (LoadCredential=): 'holdfast status' when it runs says what that user lacks",
	} {
		if err := errors.Join(os.WriteFile(c.EtcdPasswordFile, []byte("secret"), mode), os.Chmod(c.EtcdPasswordFile, mode)); err != nil {
			t.Fatal(err)
		}
		if f, untried := User(c, slog.New(slog.DiscardHandler)); !untried || !strings.HasSuffix(f.Text, want) {
			t.Errorf("%v: %t %s", mode, untried, f.Text)
		}
	}
}
