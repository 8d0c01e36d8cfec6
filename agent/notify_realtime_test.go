package agent

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/standstill"
)

// manager is a service manager's notify socket.
type manager struct {
	*net.UnixConn
	t *testing.T
}

func listenNotify(t *testing.T, name string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return &manager{conn, t}
}

// next is the next datagram.
func (m *manager) next() string {
	m.t.Helper()
	if err := m.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.t.Fatal(err)
	}
	text := make([]byte, 4096)
	n, err := m.Read(text)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text[:n])
}

// quietFor reports whether nothing comes.
func (m *manager) quietFor(d time.Duration) bool {
	m.t.Helper()
	if err := m.SetReadDeadline(time.Now().Add(d)); err != nil {
		m.t.Fatal(err)
	}
	_, err := m.Read(make([]byte, 4096))
	return err != nil
}

func TestSystemdIsToldReadyStatusAndStopping(t *testing.T) {
	for name, socket := range map[string]string{
		"a path":             filepath.Join(t.TempDir(), "notify"),
		"an abstract socket": fmt.Sprintf("@holdfast-test-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			m := listenNotify(t, socket)
			a := built(t)
			if a.systemd = systemd(a.log); a.systemd == nil || a.systemd.Watchdog != 0 {
				t.Fatalf("%+v", a.systemd)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- a.notify(ctx) }()
			if got := m.next(); got != "READY=1" { // although no broker answers
				t.Error(got)
			}
			if got := m.next(); got != "STATUS="+a.oneLine() || !strings.Contains(got, "not ready") || strings.Contains(got, "\n") {
				t.Error(got)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := m.next(); !strings.HasPrefix(got, "STOPPING=1\n") {
				t.Error(got)
			}
		})
	}
}

func TestWithoutAServiceManagerNobodyIsTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if s := systemd(built(t).log); s != nil {
		t.Errorf("%+v", s)
	}
}

func TestTheWatchdogIsFedByTheLoopAndByNothingElse(t *testing.T) {
	m := listenNotify(t, filepath.Join(t.TempDir(), "notify"))
	const bound = 800 * time.Millisecond
	t.Setenv("WATCHDOG_USEC", fmt.Sprint(bound.Microseconds()))
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	a := built(t)
	if a.systemd = systemd(a.log); a.systemd == nil || a.systemd.Watchdog != bound {
		t.Fatalf("%+v", a.systemd)
	}
	dir, err := openStateDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	a.dir = dir
	ctx, cancel := context.WithCancel(t.Context())
	a.life0 = ctx
	done := make(chan error, 2)
	go func() { done <- a.loop(ctx) }()
	go func() { done <- a.feedWatchdog(ctx) }()
	before := standstill.Begin(t)
	for range 5 {
		if got := m.next(); got != "WATCHDOG=1" {
			t.Error(got)
		}
	}
	took := time.Since(before)
	hang, hanging := make(chan struct{}), make(chan struct{})
	a.tell(ctx, func() { close(hanging); <-hang })
	<-hanging
	quiet := m.quietFor(2 * bound)
	if !quiet { // at most the one comes whose pass was over
		quiet = m.quietFor(2 * bound)
	}
	if !quiet {
		t.Error("fed while the loop hangs")
	}
	close(hang)
	if got := m.next(); got != "WATCHDOG=1" {
		t.Error(got)
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	a.tasks.Wait()
	standstill.Within(t, "five pings", before, took, 5*bound/2)
}

func TestTheWatchdogOfAnotherProcessIsNotFed(t *testing.T) {
	listenNotify(t, filepath.Join(t.TempDir(), "notify"))
	t.Setenv("WATCHDOG_USEC", "1000000")
	t.Setenv("WATCHDOG_PID", "1")
	if s := systemd(built(t).log); s == nil || s.Watchdog != 0 {
		t.Errorf("%+v", s)
	}
}
