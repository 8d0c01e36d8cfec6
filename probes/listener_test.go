package probes

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
)

func TestTheTableOfSocketsIsReadForOneAddress(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(local, state, inode string) string {
		return "   0: " + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1 0000000000000000 100 0 0 10 0\n"
	}
	loopback := netip.MustParseAddrPort("127.0.0.1:4222")
	for _, tt := range []struct {
		name, table string
		at          netip.AddrPort
		want        []string
	}{
		{"the address itself", head + row("0100007F:107E", "0A", "71"), loopback, []string{"71"}},
		{"everywhere", head + row("00000000:107E", "0A", "72"), loopback, []string{"72"}},
		{"everywhere, by IPv6", head + row("00000000000000000000000000000000:107E", "0A", "73"), loopback, []string{"73"}},
		{"IPv6", head + row("00000000000000000000000001000000:107E", "0A", "74"), netip.MustParseAddrPort("[::1]:4222"), []string{"74"}},
		{"IPv4 written as IPv6", head + row("0000000000000000FFFF00000100007F:107E", "0A", "75"), loopback, []string{"75"}},
		{"another address", head + row("0200007F:107E", "0A", "76"), loopback, nil},
		{"another port", head + row("0100007F:107F", "0A", "77"), loopback, nil},
		{"a connection", head + row("0100007F:107E", "01", "78"), loopback, nil},
		{"cut short", head + "   0: 0100007F:107E 0", loopback, nil},
		{"no address", head + row("xyz:107E", "0A", "79"), loopback, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := listeners([]byte(tt.table), []netip.AddrPort{tt.at}); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

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
		if _, err := FindProcess(pidFile(t, pid), ""); !errors.Is(err, ErrNeverBroker) {
			t.Errorf("%d: %v", pid, err)
		}
	}
}
