package probes

import (
	"context"
	"net"
	"testing"
	"time"

	"holdfast/brokerapi/hosts"
)

// holding runs Hold and returns what it says.
func holding(t *testing.T, address string) <-chan Held {
	t.Helper()
	return holdingBy(t, func(ctx context.Context) (net.Conn, error) { return hosts.Dial(ctx, address) })
}

func holdingBy(t *testing.T, dial func(context.Context) (net.Conn, error)) <-chan Held {
	t.Helper()
	said := make(chan Held, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- keepOne(ctx, dial, func(h Held) { said <- h }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("Hold goes on after its context ended")
		}
	})
	return said
}

func says(t *testing.T, said <-chan Held, want Held) {
	t.Helper()
	select {
	case got := <-said:
		if got != want {
			t.Fatalf("said %v, want %v", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("said nothing, want %v", want)
	}
}

func listenAt(t *testing.T, at string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func accepted(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestTheEndOfAHeldConnectionIsToldAndAPortThatRefusesIsGone(t *testing.T) {
	l := listenAt(t, "127.0.0.1:0")
	said := holding(t, l.Addr().String())
	for range 2 { // it closes what is idle, and goes on
		conn := accepted(t, l)
		says(t, said, HeldBegun)
		conn.Close()
		says(t, said, HeldEnded)
	}
	conn := accepted(t, l)
	says(t, said, HeldBegun)
	l.Close()
	conn.Close()
	says(t, said, HeldEnded)
	says(t, said, HeldGone)
	accepted(t, listenAt(t, l.Addr().String())) // it is back
	says(t, said, HeldBegun)
}

func TestABrokerThatWasNeverReachedIsNotGone(t *testing.T) {
	l := listenAt(t, "127.0.0.1:0")
	at := l.Addr().String()
	l.Close()
	said := holding(t, at)
	accepted(t, listenAt(t, at))
	says(t, said, HeldBegun)
}

func TestABrokerWhoseAddressIsSilentIsAwayAndNotGone(t *testing.T) {
	l := listenAt(t, "127.0.0.1:0")
	said := holdingBy(t, func(ctx context.Context) (net.Conn, error) {
		conn, err := hosts.Dial(ctx, l.Addr().String())
		if err != nil {
			err = context.DeadlineExceeded
		}
		return conn, err
	})
	conn := accepted(t, l)
	says(t, said, HeldBegun)
	l.Close()
	conn.Close()
	says(t, said, HeldEnded)
	says(t, said, HeldAway)
	accepted(t, listenAt(t, l.Addr().String()))
	says(t, said, HeldBegun)
}

func TestANameThatIsNotResolvedSaysNothing(t *testing.T) {
	said := holding(t, "broker.invalid:1")
	select {
	case got := <-said:
		t.Errorf("said %v", got)
	case <-time.After(300 * time.Millisecond):
	}
}

func TestConnectionsThatAreClosedAtOnceMakeNoBusyLoop(t *testing.T) {
	l := listenAt(t, "127.0.0.1:0")
	many := make(chan int)
	go func() {
		n := 0
		for {
			conn, err := l.Accept()
			if err != nil {
				many <- n
				return
			}
			n++
			conn.Close()
		}
	}()
	holding(t, l.Addr().String())
	time.Sleep(time.Second)
	l.Close()
	if n := <-many; n > 6 { // at 0, 50, 150, 350, 750 ms
		t.Errorf("%d connections within a second", n)
	}
}
