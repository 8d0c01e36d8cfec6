package probes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/prometheus/procfs"
)

// Holding says whether a process holds a listening socket.
type Holding int

// The answers to that.
const (
	HoldingUnknown Holding = iota // not to be seen: another host or network namespace, or no permission
	HoldingYes
	HoldingNo      // it does not; who does is not seen
	HoldingAnother // it does not, and who does is
)

// ListensAt looks whether the process holds the socket that listens at one of the
// addresses, and who does if it does not. Sockets are looked at in the network namespace of this
// process, and only for addresses of this host. Reading another user's descriptors takes
// CAP_SYS_PTRACE. Without a pid it looks for who does alone. Every descriptor of every process is
// looked at, which on a busy host takes its time, at most until ctx ends.
func ListensAt(ctx context.Context, pid int, at []netip.AddrPort) (Holding, ProcessView) {
	sockets, _ := listenersAt(at)
	if len(sockets) == 0 {
		return HoldingUnknown, ProcessView{}
	}
	if pid != 0 {
		if its := holdingOf(pid, sockets); its != HoldingNo {
			return its, ProcessView{}
		}
	}
	all, _ := Processes(func(v ProcessView) bool {
		holds, err := holdsOne(v.Pid, sockets)
		return ctx.Err() == nil && err == nil && holds && !v.Ended
	})
	if len(all) == 0 {
		return HoldingNo, ProcessView{}
	}
	return HoldingAnother, all[0]
}

// holdingOf says whether the process, in our network namespace, holds one of the sockets: yes, no or unknown.
func holdingOf(pid int, sockets []string) Holding {
	ours, err := os.Readlink("/proc/self/ns/net")
	its, hidden := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	holds, unseen := holdsOne(pid, sockets)
	switch {
	case errors.Join(err, hidden, unseen) != nil || its != ours:
		return HoldingUnknown
	case holds:
		return HoldingYes
	}
	return HoldingNo
}

// listening is the state of such a socket in /proc/net/tcp (tcp_states.h of the kernel).
const listening = 10

// listenersAt names the sockets that listen at one of the addresses, or at its port everywhere,
// as a descriptor of theirs is shown. here: one of the addresses is this host's.
func listenersAt(at []netip.AddrPort) (names []string, here bool) {
	own, _ := net.InterfaceAddrs()
	at = slices.DeleteFunc(slices.Clone(at), func(a netip.AddrPort) bool {
		return !a.Addr().IsLoopback() && !a.Addr().IsUnspecified() && !slices.ContainsFunc(own, func(o net.Addr) bool {
			host, ok := o.(*net.IPNet)
			return ok && host.IP.Equal(a.Addr().AsSlice())
		})
	})
	proc, err := procfs.NewDefaultFS()
	if err != nil || len(at) == 0 {
		return nil, false
	}
	//lint:ignore SA1019 netlink wants rights that a sidecar has not
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		lines, err := table()
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // else there is no such protocol here
			return nil, false
		}
		for _, l := range lines {
			if l.St == listening && slices.ContainsFunc(at, func(a netip.AddrPort) bool {
				return uint64(a.Port()) == l.LocalPort && (l.LocalAddr.IsUnspecified() || l.LocalAddr.Equal(a.Addr().AsSlice()))
			}) {
				names = append(names, fmt.Sprintf("socket:[%d]", l.Inode))
			}
		}
	}
	return names, true
}

// holdsOne reports whether the process has one of the sockets open.
func holdsOne(pid int, names []string) (bool, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false, err
	}
	open, err := p.FileDescriptorTargets()
	return slices.ContainsFunc(open, func(name string) bool { return slices.Contains(names, name) }), err
}
