//go:build pulsar

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

// ownNetwork marks the process that is in a network namespace of its own, where packets can be
// dropped without a trace on the machine.
const ownNetwork = "HOLDFAST_COMPARE_NETWORK"

// enterOwnNetwork becomes a process in a new network namespace, or says why it cannot.
func enterOwnNetwork() error {
	if os.Getenv(ownNetwork) != "" {
		return errors.Join(os.Unsetenv(ownNetwork), run("ip", "link", "set", "lo", "up"))
	}
	if err := harness.CanDropPackets(); err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("a network namespace of its own needs unshare: %w", err)
	}
	if err := run(unshare, "--net", "true"); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(unshare, append([]string{unshare, "--net", self}, os.Args[1:]...), append(os.Environ(), ownNetwork+"=yes"))
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// brokersEtcd and sidecarsEtcd are where the broker and the sidecar of that number, from 1, find
// etcd: an address of its own for each, so that it alone can be cut off.
func brokersEtcd(n int) string { return fmt.Sprintf("127.0.1.%d", n) }

// sidecarsEtcd is like brokersEtcd.
func sidecarsEtcd(n int) string { return fmt.Sprintf("127.0.2.%d", n) }

// How a cut treats a packet. A dropped one tells nobody; a refused one resets its connection, and
// the resets themselves pass.
var (
	dropped = []string{"-j", "DROP"}
	refused = []string{"!", "--tcp-flags", "RST", "RST", "-j", "REJECT", "--reject-with", "tcp-reset"}
)

// sever adds (-A) or deletes (-D) the rules for what goes to the address and what comes from it:
// as it arrives, so that the kernel of the sender does not tell.
func sever(action string, port int, address string, how []string) error {
	rule := func(end, side string) error {
		return run("iptables", append([]string{"-w", action, "INPUT", "-p", "tcp", end, address, side, fmt.Sprint(port)}, how...)...)
	}
	return errors.Join(rule("-d", "--dport"), rule("-s", "--sport"))
}

// cutOff treats all packets from and to these addresses of a server so for that long.
func cutOff(ctx context.Context, d time.Duration, port int, how []string, addresses ...string) error {
	for _, a := range addresses {
		if err := sever("-A", port, a, how); err != nil {
			return err
		}
	}
	errs := []error{harness.Wait(ctx, d)}
	for _, a := range addresses {
		errs = append(errs, sever("-D", port, a, how))
	}
	return errors.Join(errs...)
}
