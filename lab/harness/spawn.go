package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// The parent-death signal is bound to the thread that forked, not to the process
// (prctl(2)), so all children are started on one thread that never ends. Being
// alone on its thread, it may also enter a network namespace for one fork.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go forkForever(work)
	return work
})

// forkForever has a name by which tests that look for goroutines left know it.
func forkForever(work <-chan func()) {
	runtime.LockOSThread()
	for f := range work {
		f()
	}
}

// startCmd starts cmd, in the named network namespace if there is a name.
func startCmd(cmd *exec.Cmd, namespace string) error {
	result := make(chan error, 1)
	spawner() <- func() {
		result <- inNamespace(namespace, cmd.Start)
	}
	return <-result
}

// runCmd runs cmd to its end and returns its combined output in the error.
func runCmd(namespace, name string, args ...string) error {
	var out tailBuffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := startCmd(cmd, namespace); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run %s %q: %w: %s", name, args, err, out.String())
	}
	return nil
}

// inNamespace calls f with the calling thread inside the namespace. The caller
// must be locked to its thread. If there is no way back the thread is not usable
// any more, and that is reported.
func inNamespace(name string, f func() error) error {
	if name == "" {
		return f()
	}
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	away, err := os.Open("/run/netns/" + name)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer away.Close()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, &strandedError{back})
	}
	return err
}

// strandedError says that a thread could not leave a network namespace.
type strandedError struct{ err error }

func (e *strandedError) Error() string { return "leave network namespace: " + e.err.Error() }
func (e *strandedError) Unwrap() error { return e.err }

// Place is where a process runs: the host, or a network namespace. The zero value
// is the host. Addresses of a place are dialed from inside it, so 127.0.0.1 is
// its own loopback and no cut stands in the way.
type Place struct {
	Namespace string
}

// DialContext connects to an address as seen from inside the place. The address
// must hold an IP address, not a name.
func (p Place) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if p.Namespace == "" {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	// A socket belongs to the namespace that its thread was in when it was made.
	runtime.LockOSThread()
	var conn net.Conn
	err := inNamespace(p.Namespace, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	var stranded *strandedError
	if !errors.As(err, &stranded) {
		runtime.UnlockOSThread()
	}
	if err != nil && conn != nil {
		conn.Close()
		conn = nil
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s in %s: %w", address, p, err)
	}
	return conn, nil
}

// Dial is DialContext without a bound; it lets a Place serve as nats.CustomDialer.
func (p Place) Dial(network, address string) (net.Conn, error) {
	return p.DialContext(context.Background(), network, address)
}

func (p Place) String() string {
	if p.Namespace == "" {
		return "host"
	}
	return "namespace " + p.Namespace
}
