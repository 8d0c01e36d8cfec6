package probes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"
)

// Holding says whether a process holds a listening socket.
type Holding int

// The answers to that.
const (
	HoldingUnknown Holding = iota // not to be seen: another host or network namespace, or no permission
	HoldingYes
	HoldingNo      // it does not; who does is not seen
	HoldingAnother // it does not, and Holder does
)

// Listening is who listens at an address, as far as can be seen from here.
type Listening struct {
	Holding Holding
	Holder  ProcessView // with HoldingAnother
}

// ListensAt looks whether the process holds the socket that listens at one of the
// addresses. Sockets are looked at in the network namespace of this process, and only
// for addresses of this host. Reading another user's descriptors takes CAP_SYS_PTRACE.
func ListensAt(pid int, at []netip.AddrPort) Listening {
	sockets := listenersAt(at)
	if len(sockets) == 0 || !sameNetwork(pid) {
		return Listening{}
	}
	holds, err := holdsOne(pid, sockets)
	switch {
	case err != nil:
		return Listening{}
	case holds:
		return Listening{Holding: HoldingYes}
	}
	if holder, ok := holderOf(context.Background(), sockets); ok {
		return Listening{HoldingAnother, holder}
	}
	return Listening{Holding: HoldingNo}
}

// ListenerAt is the process that listens at one of the addresses; false: none is seen, or
// not before ctx ended. Every descriptor of every process is looked at, which on a busy
// host takes its time.
func ListenerAt(ctx context.Context, at []netip.AddrPort) (ProcessView, bool) {
	sockets := listenersAt(at)
	if len(sockets) == 0 {
		return ProcessView{}, false
	}
	return holderOf(ctx, sockets)
}

// State of a socket in /proc/net/tcp (tcp_states.h of the kernel).
const listening = 10

// listenersAt names the sockets that listen at one of the addresses, or at its port everywhere, as
// descriptors of them are shown. What cannot be read is not among them.
func listenersAt(at []netip.AddrPort) (names []string) {
	at = slices.DeleteFunc(slices.Clone(at), func(a netip.AddrPort) bool { return !ofThisHost(a.Addr()) })
	proc, err := procfs.NewDefaultFS()
	if len(at) == 0 || err != nil {
		return nil
	}
	//lint:ignore SA1019 netlink wants rights that a sidecar has not
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		lines, err := table()
		if err != nil {
			continue // no such protocol here, or hidden
		}
		for _, l := range lines {
			addr, _ := netip.AddrFromSlice(l.LocalAddr)
			if l.St == listening && slices.ContainsFunc(at, func(a netip.AddrPort) bool {
				return a.Port() == uint16(l.LocalPort) && (addr.Unmap().IsUnspecified() || a.Addr().Unmap() == addr.Unmap())
			}) {
				names = append(names, "socket:["+strconv.FormatUint(l.Inode, 10)+"]")
			}
		}
	}
	return names
}

func ofThisHost(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(o net.Addr) bool {
		p, err := netip.ParsePrefix(o.String())
		return err == nil && p.Addr().Unmap() == a.Unmap()
	})
}

// sameNetwork reports whether that process surely has our network namespace.
func sameNetwork(pid int) bool {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && its == ours
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

// holderOf walks /proc for the process that has one of the sockets open.
func holderOf(ctx context.Context, names []string) (ProcessView, bool) {
	all, err := procfs.AllProcs()
	if err != nil {
		return ProcessView{}, false
	}
	for _, p := range all {
		if ctx.Err() != nil {
			break
		}
		if holds, err := holdsOne(p.PID, names); err != nil || !holds {
			continue
		}
		if v, err := ReadProcess(p.PID); err == nil {
			return v, true
		}
	}
	return ProcessView{}, false
}
