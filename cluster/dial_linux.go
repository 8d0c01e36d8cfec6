package cluster

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacked makes the kernel give a connection up when data stays unacknowledged for
// unackedMost (tcp(7), TCP_USER_TIMEOUT); the default is a quarter of an hour.
func limitUnacked(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedMost.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
