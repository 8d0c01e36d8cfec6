package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// A reservation is a name in the abstract socket space: unique on the machine,
// also between processes, and given back by the kernel when its holder dies.
func reserve(what string) (release func() error, ok bool) {
	l, err := net.Listen("unix", "@holdfast-lab-"+what)
	if err != nil {
		return nil, false
	}
	return l.Close, true
}

// Ports come from below the range that the kernel gives to outgoing connections,
// so a server that is down does not lose its port to somebody's connection.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ReservePort finds a port that is free on the host and that no other lab has, in this
// process or another, until release is called or the process ends.
func ReservePort() (port int, release func() error, err error) {
	for range 500 {
		port = firstPort + rand.IntN(lastPort-firstPort)
		release, ok := reserve("port-" + strconv.Itoa(port))
		if !ok {
			continue
		}
		if isFree(port) {
			return port, release, nil
		}
		release()
	}
	return 0, nil, fmt.Errorf("find a free port between %d and %d: all tries failed", firstPort, lastPort)
}

// isFree listens for a moment. A child that is forked meanwhile would hold the port until
// it executes its program, so none is.
func isFree(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}

// reserveSubnet finds an x of 10.213.x.0/24 that no other lab has.
func reserveSubnet() (x int, release func() error, err error) {
	for _, n := range rand.Perm(254) {
		x = n + 1
		if release, ok := reserve("subnet-" + strconv.Itoa(x)); ok {
			return x, release, nil
		}
	}
	return 0, nil, errors.New("find a free subnet in 10.213.0.0/16: all are taken")
}
