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
		return run("ip", "link", "set", "lo", "up")
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

// Each broker and each sidecar has an address of etcd of its own, so that it alone can be cut off.
func brokersEtcd(n int) string  { return fmt.Sprintf("127.0.1.%d", n) }
func sidecarsEtcd(n int) string { return fmt.Sprintf("127.0.2.%d", n) }

// drop adds (-A) or deletes (-D) the rules that drop what goes to the address and what comes from
// it: as it arrives, so that nobody is told.
func (s *stage) drop(action, address string) error {
	port := fmt.Sprint(s.cluster.Etcd.Port)
	return errors.Join(
		run("iptables", "-w", action, "INPUT", "-p", "tcp", "-d", address, "--dport", port, "-j", "DROP"),
		run("iptables", "-w", action, "INPUT", "-p", "tcp", "-s", address, "--sport", port, "-j", "DROP"))
}

// cut keeps the first broker, its sidecar or both from etcd.
func cut(d time.Duration, addresses ...string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		for _, a := range addresses {
			if err := s.drop("-A", a); err != nil {
				return err
			}
		}
		errs := []error{harness.Wait(ctx, d)}
		for _, a := range addresses {
			errs = append(errs, s.drop("-D", a))
		}
		return errors.Join(errs...)
	}
}
