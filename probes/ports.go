package probes

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strings"
)

// Ports are the TCP ports at which the process listens; none: nowhere, or it is not to be seen.
func Ports(pid int) (ports []uint16) {
	_ = eachSocket(pid, func(port uint16, state string) {
		if state == listening && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	})
	return ports
}

// Silent reports whether the process surely neither listens at one of the ports nor has a
// connection there that its client may still use. Not to be seen is not silent.
func Silent(pid int, ports []uint16) bool {
	silent := true
	err := eachSocket(pid, func(port uint16, state string) {
		silent = silent && !(slices.Contains(ports, port) && slices.Contains([]string{listening, established, halfClosed}, state))
	})
	return err == nil && silent
}

// States of a socket in /proc/net/tcp (tcp_states.h of the kernel).
const established, halfClosed, listening = "01", "08", "0A"

// eachSocket calls do with the local port and the state of every TCP socket that the process
// has open.
func eachSocket(pid int, do func(port uint16, state string)) error {
	if !sameNetwork(pid) {
		return os.ErrNotExist
	}
	inodes, err := socketsOf(pid)
	if err != nil {
		return err
	}
	open := make(map[string]bool, len(inodes)) // a broker may have tens of thousands
	for _, one := range inodes {
		open[one] = true
	}
	const local, state, inode = 1, 3, 9
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) { // there may be no IPv6
			return err
		}
		for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) <= inode || !open[fields[inode]] {
				continue
			}
			if at, ok := tableAddr(fields[local]); ok {
				do(at.Port(), fields[state])
			}
		}
	}
	return nil
}
