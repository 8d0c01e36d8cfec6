package agent

import (
	"context"
	"net"
	"net/netip"
	"testing"
)

func TestOnlyARefusedConnectionIsARefusal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}
	if refuses(t.Context(), at) {
		t.Error("somebody listens")
	}
	l.Close()
	if !refuses(t.Context(), at) {
		t.Error("nobody listens")
	}
	if refuses(t.Context(), nil) {
		t.Error("no address is known")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if refuses(ended, at) {
		t.Error("nothing was tried")
	}
}
