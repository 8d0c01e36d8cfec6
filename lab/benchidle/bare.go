package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// bareVariable makes a process that is the bare client of the endpoints that it holds.
const bareVariable = "HOLDFAST_BENCHIDLE_BARE"

// startBare starts the bare client, which dies with this thread's process.
func startBare(endpoints []string) (pid int, stop func(), err error) {
	// The parent-death signal is bound to the thread that forked.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), bareVariable+"="+strings.Join(endpoints, ","))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return 0, nil, fmt.Errorf("start the bare client: %w", err)
	}
	return cmd.Process.Pid, func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		runtime.UnlockOSThread()
	}, nil
}

// bare keeps one key alive with etcd's own client: a keep-alive and a linearizable read
// of the key at each eighth of the TTL, as a sidecar does, and nothing else.
func bare(endpoints []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	lease, err := c.Grant(ctx, int64(ttl.Seconds()))
	if err != nil {
		return err
	}
	if _, err := c.Put(ctx, "/bare", "", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	tick := time.NewTicker(ttl / 8)
	defer tick.Stop()
	for {
		if _, err := c.KeepAliveOnce(ctx, lease.ID); err != nil {
			return err
		}
		if _, err := c.Get(ctx, "/bare"); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
