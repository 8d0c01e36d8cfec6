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
		if got, _ := ListensAt(t.Context(), os.Getpid(), at); got != HoldingYes {
			t.Errorf("%s: we hold it: %v", network, got)
		}
		for _, pid := range []int{stranger.Process.Pid, 0} {
			if got, holder := ListensAt(t.Context(), pid, at); got != HoldingAnother || holder.Pid != os.Getpid() {
				t.Errorf("%s: another than %d holds it: %v %+v", network, pid, got, holder)
			}
		}
	}
	for _, at := range []string{"127.0.0.1:1", "192.0.2.1:4222"} { // nobody; another host
		if got, _ := ListensAt(t.Context(), os.Getpid(), []netip.AddrPort{netip.MustParseAddrPort(at)}); got != HoldingUnknown {
			t.Errorf("%s: %v", at, got)
		}
	}
}

func TestProcess1AndHoldfastItselfAreNeverTheBroker(t *testing.T) {
	for _, pid := range []int{1, os.Getpid()} {
		if _, err := (&Finder{PIDFile: pidFile(t, pid)}).Find(); !errors.Is(err, ErrNeverBroker) {
			t.Errorf("%d: %v", pid, err)
		}
	}
}
