package probes

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
)

func TestAProcessIsSilentWhenItsPortAndTheConnectionsThereAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(l.Addr().String()).Port()
	ports := []uint16{port}
	if !slices.Contains(Ports(os.Getpid()), port) {
		t.Skip("this process does not see its own sockets")
	}
	want := func(when string, silent bool) {
		t.Helper()
		if got := Silent(os.Getpid(), ports); got != silent {
			t.Errorf("%s: silent is %v", when, got)
		}
	}
	want("it listens", false)
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	want("it listens no more, and has a client", false)
	served.Close()
	want("its client is gone, too", true)
	if Silent(1<<30, ports) {
		t.Error("a process that is not there is silent")
	}
}
