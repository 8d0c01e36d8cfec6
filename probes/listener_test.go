package probes

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
)

func TestWhoHoldsTheListeningSocketIsSeen(t *testing.T) {
	stranger := sleeper(t, "sleep")
	for _, network := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", network)
		if err != nil {
			t.Logf("%s: %v", network, err)
			continue
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).AddrPort().Port()
		at := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
		if network == "[::1]:0" {
			at = []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Loopback(), port)}
		}
		if got := ListensAt(os.Getpid(), at); got.Holding != HoldingYes {
			t.Errorf("%s: we hold it: %+v", network, got)
		}
		if got := ListensAt(stranger.Process.Pid, at); got.Holding != HoldingAnother || got.Holder.Pid != os.Getpid() {
			t.Errorf("%s: another holds it: %+v", network, got)
		}
		if v, ok := ListenerAt(t.Context(), at); !ok || v.Pid != os.Getpid() {
			t.Errorf("%s: %+v %t", network, v, ok)
		}
	}
	for _, at := range []string{"127.0.0.1:1", "192.0.2.1:4222"} { // nobody; another host
		if got := ListensAt(os.Getpid(), []netip.AddrPort{netip.MustParseAddrPort(at)}); got.Holding != HoldingUnknown {
			t.Errorf("%s: %+v", at, got)
		}
	}
}

func TestProcess1AndHoldfastItselfAreNeverTheBroker(t *testing.T) {
	for _, pid := range []int{1, os.Getpid()} {
		if _, err := FindProcess(pidFile(t, pid), "", Target{}); !errors.Is(err, ErrNeverBroker) {
			t.Errorf("%d: %v", pid, err)
		}
	}
}
