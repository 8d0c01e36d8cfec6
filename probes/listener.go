package probes

import (
	"context"
	"fmt"
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
	ours, err := os.Readlink("/proc/self/ns/net")
	its, hidden := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if len(sockets) == 0 || err != nil || hidden != nil || its != ours {
		return Listening{}
	}
	if holds, err := holdsOne(pid, sockets); err != nil {
		return Listening{}
	} else if holds {
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
	return holderOf(ctx, listenersAt(at))
}

// listening is the state of such a socket in /proc/net/tcp (tcp_states.h of the kernel).
const listening = 10

// listenersAt names the sockets that listen at one of the addresses, or at its port everywhere,
// as a descriptor of theirs is shown.
func listenersAt(at []netip.AddrPort) (names []string) {
	own, _ := net.InterfaceAddrs()
	at = slices.DeleteFunc(slices.Clone(at), func(a netip.AddrPort) bool {
		return !a.Addr().IsLoopback() && !slices.ContainsFunc(own, func(o net.Addr) bool {
			p, err := netip.ParsePrefix(o.String())
			return err == nil && p.Addr().Unmap() == a.Addr().Unmap()
		})
	})
	proc, err := procfs.NewDefaultFS()
	if err != nil || len(at) == 0 {
		return nil
	}
	//lint:ignore SA1019 netlink wants rights that a sidecar has not
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		lines, _ := table() // no such protocol here, or hidden
		for _, l := range lines {
			addr, _ := netip.AddrFromSlice(l.LocalAddr)
			if addr = addr.Unmap(); l.St == listening && slices.ContainsFunc(at, func(a netip.AddrPort) bool {
				return uint64(a.Port()) == l.LocalPort && (addr.IsUnspecified() || a.Addr().Unmap() == addr)
			}) {
				names = append(names, fmt.Sprintf("socket:[%d]", l.Inode))
			}
		}
	}
	return names
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
	all, err := Processes(func(v ProcessView) bool {
		if v.Ended || len(names) == 0 || ctx.Err() != nil {
			return false
		}
		holds, err := holdsOne(v.Pid, names)
		return err == nil && holds
	})
	if err != nil || len(all) == 0 {
		return ProcessView{}, false
	}
	return all[0], true
}
