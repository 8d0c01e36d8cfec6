package probes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// listenersAt lists the inodes of the sockets that listen there.
func listenersAt(at []netip.AddrPort) (inodes []string) {
	at = slices.DeleteFunc(slices.Clone(at), func(a netip.AddrPort) bool { return !ofThisHost(a.Addr()) })
	if len(at) == 0 {
		return nil
	}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		data, err := os.ReadFile(table)
		if err != nil {
			continue // no such protocol here, or hidden: then nothing is known
		}
		inodes = append(inodes, listeners(data, at)...)
	}
	return inodes
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

// listeners reads a table such as /proc/net/tcp (proc(5)): the inodes of the sockets
// that listen at one of the addresses, or at its port everywhere.
func listeners(table []byte, at []netip.AddrPort) (inodes []string) {
	const local, state, inode = 1, 3, 9
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || fields[state] != listening {
			continue
		}
		socket, ok := tableAddr(fields[local])
		if ok && slices.ContainsFunc(at, func(a netip.AddrPort) bool {
			return a.Port() == socket.Port() && (socket.Addr().IsUnspecified() || a.Addr().Unmap() == socket.Addr())
		}) {
			inodes = append(inodes, fields[inode])
		}
	}
	return inodes
}

// tableAddr reads 0100007F:1F90: words of four bytes in the host's own order.
func tableAddr(s string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		if len(word) == 4 {
			binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
		}
	}
	addr, ok := netip.AddrFromSlice(raw)
	n, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok && err == nil
}

// holdsOne reports whether the process has one of the sockets open.
func holdsOne(pid int, inodes []string) (bool, error) {
	open, err := socketsOf(pid)
	return slices.ContainsFunc(open, func(inode string) bool { return slices.Contains(inodes, inode) }), err
}

// socketsOf lists the inodes of the sockets that the process has open.
func socketsOf(pid int) (inodes []string, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	open, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("look at the descriptors of process %d: %w", pid, err)
	}
	defer open.Close()
	names, err := open.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look at the descriptors of process %d: %w", pid, err)
	}
	for _, name := range names {
		link, err := os.Readlink(filepath.Join(dir, name))
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			inodes = append(inodes, strings.TrimSuffix(inode, "]"))
		}
	}
	return inodes, nil
}

// holderOf walks /proc for the process that has one of the sockets open.
func holderOf(ctx context.Context, inodes []string) (ProcessView, bool) {
	all, err := pids()
	if err != nil {
		return ProcessView{}, false
	}
	for _, pid := range all {
		if ctx.Err() != nil {
			break
		}
		if holds, err := holdsOne(pid, inodes); err != nil || !holds {
			continue
		}
		if v, err := ReadProcess(pid); err == nil {
			return v, true
		}
	}
	return ProcessView{}, false
}
