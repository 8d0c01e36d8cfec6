package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/lab/harness"
)

// daemon is a Docker daemon that nobody else uses. It makes no bridge and touches no
// packet filter: containers have the host's network or none.
type daemon struct {
	dir    string
	log    string
	client string        // the program docker
	done   chan struct{} // closed when the process has ended
}

// startDaemon skips the test where none can be started.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a Docker daemon is started as root only")
	}
	for _, program := range []string{"dockerd", "containerd", "runc", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s on PATH: Debian has it in docker.io, containerd and runc", program)
		}
	}
	// The paths of its sockets are bounded by 108 bytes.
	dir, err := os.MkdirTemp("", "hf-docker-")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{dir: dir, log: filepath.Join(dir, "log"), client: clientOf(t), done: make(chan struct{})}
	log, err := os.Create(d.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("dockerd", "--host", d.host(), "--data-root", filepath.Join(dir, "data"),
		"--exec-root", filepath.Join(dir, "exec"), "--pidfile", filepath.Join(dir, "pid"),
		"--bridge=none", "--iptables=false", "--ip6tables=false")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start dockerd: %v", err)
	}
	go func() { _ = cmd.Wait(); close(d.done) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			<-d.done
		}
		// A daemon leaves what its network namespace of the host is held by.
		_ = unix.Unmount(filepath.Join(dir, "exec", "netns", "default"), unix.MNT_DETACH)
		if err := os.RemoveAll(dir); err != nil {
			t.Logf("left behind: %v", err)
		}
	})
	err = harness.Await(t.Context(), time.Minute, "the Docker daemon", func(ctx context.Context) (bool, string) {
		select {
		case <-d.done:
			return true, ""
		default:
		}
		_, err := d.docker(ctx, nil, "version", "--format", "{{.Server.Version}}")
		return err == nil, fmt.Sprint(err)
	})
	select {
	case <-d.done:
		t.Skipf("a Docker daemon cannot run here: %s", d.tail())
	default:
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, d.tail())
	}
	return d
}

func (d *daemon) host() string { return "unix://" + filepath.Join(d.dir, "sock") }

// tail is the end of the daemon's log.
func (d *daemon) tail() string {
	raw, _ := os.ReadFile(d.log)
	return string(raw[max(0, len(raw)-2000):])
}

// clientOf is the client that came with the daemon. Another one, such as a newer one that
// builds by a plugin only, may stand before it on PATH.
func clientOf(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("dockerd")
	if err != nil {
		t.Fatal(err)
	}
	near := filepath.Join(filepath.Dir(server), "..", "bin", "docker")
	if path, err := exec.LookPath(near); err == nil {
		return path
	}
	return "docker"
}

// docker runs the client and returns what it prints.
func (d *daemon) docker(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.client, args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+d.host(), "DOCKER_CONFIG="+filepath.Join(d.dir, "client"), "DOCKER_BUILDKIT=1", "BUILDKIT_PROGRESS=plain")
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if err := cmd.Run(); err != nil {
		said := errs.String()
		return out.String(), fmt.Errorf("docker %s: %w: %s", args[0], errors.Join(err, ctx.Err()), said[max(0, len(said)-4000):])
	}
	return out.String(), nil
}

// must is docker where a failure ends the test.
func (d *daemon) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.docker(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}
