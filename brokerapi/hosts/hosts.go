// Package hosts connects to a host that is given by its name.
//
// Guaranteed: a lookup has the time that resolv.conf gives it, and not that of the connect which
// asked: where the first of two nameservers is dead, that is longer. The last good addresses are
// remembered for as long as the process runs, and used while the name cannot be resolved. Each
// address of a name is tried. An error by which no address is known is a *net.DNSError, and has
// NotResolved in its text.
//
// Not guaranteed: that a remembered address is still that of the host.
package hosts

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// NotResolved marks what says nothing of who has the name. gRPC keeps only the text of a
// dialer's error, so the mark must be text.
const NotResolved = "the name was not resolved"

// After a cut that drops packets the kernel repeats a SYN after 1, 3, 7 … seconds, and would
// sleep through the heal. Here some SYN is never older than dialEvery.
const (
	dialEvery = 200 * time.Millisecond // between the starts of two TCP connects, jittered
	dialEach  = time.Second            // bound on one TCP connect
	dialRound = 3 * time.Second        // bound on all of one Dial
	// rememberedAfter is how long a lookup may take before the addresses of the one before
	// are used instead.
	rememberedAfter = 200 * time.Millisecond
)

// names resolves host names.
type names struct {
	resolve func(ctx context.Context, host string) ([]string, error)

	mu    sync.Mutex
	known map[string]*name
}

// name is what is known of a host. Its fields are guarded by the mutex of the names.
type name struct {
	asked chan struct{} // closed at the end of the lookup that is under way; nil: none is
	good  []string      // of the last lookup that brought some
	err   error         // of the last lookup
}

// its are those of this process.
var its = &names{resolve: net.DefaultResolver.LookupHost, known: map[string]*name{}}

// Lookup returns the addresses of a host. The lookup goes on when ctx ends.
func Lookup(ctx context.Context, host string) ([]string, error) { return its.lookup(ctx, host) }

// Unknown is why no address of a host was ever known; nil: one was. Until then nothing is said
// of the host, whichever bound was hit.
func Unknown(host string) error { return its.unknown(host) }

// Dial connects to whichever address answers first that the name in host:port stands for: a
// connect begins each dialEvery, to the next one in turn, until one stands. An address that
// refuses costs no step; when each has to which there is a way from here, that is the answer, and
// only then is the error a refusal.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ips, err := Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var dialer net.Dialer
	return race(ctx, len(ips), func(ctx context.Context, address int) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort(ips[address], port))
	})
}

func isAddress(host string) bool { return host == "" || net.ParseIP(host) != nil } // "": this machine

func (n *names) lookup(ctx context.Context, host string) ([]string, error) {
	if isAddress(host) {
		return []string{host}, nil
	}
	asked, good := n.begin(host)
	var patience <-chan time.Time
	if len(good) > 0 {
		patience = time.After(rememberedAfter)
	}
	select {
	case <-asked:
	case <-patience:
	case <-ctx.Done():
	}
	if err := n.unknown(host); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known[host].good, nil
}

func (n *names) unknown(host string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.known[host]
	if isAddress(host) || k != nil && len(k.good) > 0 {
		return nil
	}
	why := net.DNSError{Err: "the nameservers have not answered yet", Name: host, IsTimeout: true}
	if k != nil && k.err != nil {
		if dns := (*net.DNSError)(nil); errors.As(k.err, &dns) {
			why = *dns
		} else {
			why.Err = k.err.Error()
		}
	}
	why.Err += "; " + NotResolved
	return &why
}

// begin starts a lookup unless one is under way.
func (n *names) begin(host string) (asked chan struct{}, good []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.known[host]
	if k == nil {
		k = &name{}
		n.known[host] = k
	}
	if k.asked == nil {
		asked := make(chan struct{})
		k.asked = asked
		go func() { // ends when the resolver gives up
			found, err := n.resolve(context.Background(), host)
			n.mu.Lock()
			defer n.mu.Unlock()
			if k.asked, k.err = nil, err; err == nil && len(found) > 0 {
				k.good = found
			}
			close(asked)
		}()
	}
	return k.asked, k.good
}

func race(ctx context.Context, addresses int, dial func(ctx context.Context, address int) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialRound)
	defer cancel()
	type result struct {
		address int
		conn    net.Conn
		err     error
	}
	results, refused := make(chan result), make([]bool, addresses)
	next := time.NewTimer(0)
	defer next.Stop()
	var last error
	for turn := 0; ; {
		select {
		case <-next.C:
			address := turn % addresses
			go func() { // ends with ctx at the latest, closing what it brought
				one, done := context.WithTimeout(ctx, dialEach)
				defer done()
				conn, err := dial(one, address)
				select {
				case results <- result{address, conn, err}:
				case <-ctx.Done():
					if conn != nil {
						conn.Close()
					}
				}
			}()
			turn++
			next.Reset(dialEvery - rand.N(dialEvery/5)) // dialEvery is a promise
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if last == nil || weight(r.err) >= weight(last) {
				last = r.err
			}
			if timedOut(r.err) {
				break
			}
			if refused[r.address] = true; !slices.Contains(refused, false) {
				return nil, last
			}
			next.Reset(0)
		case <-ctx.Done():
			if last == nil || weight(last) < silent {
				last = ctx.Err()
			}
			return nil, last
		}
	}
}

// How much an address's error weighs in that of the name: one that is silent may be where the host is.
const (
	noWay = iota // its kind cannot be reached from here, as IPv6 where there is none
	refuses
	silent
)

func weight(err error) int {
	switch {
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
		return noWay
	case errors.Is(err, syscall.ECONNREFUSED):
		return refuses
	}
	return silent
}

func timedOut(err error) bool {
	var netErr net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) && netErr.Timeout()
}
