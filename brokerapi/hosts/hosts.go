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
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
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
	lookups singleflight.Group // one for a host at a time

	mu   sync.Mutex
	good map[string][]string // of the last lookup of a host that brought some
	errs map[string]error    // of the last lookup
}

// its are those of this process.
var its = &names{resolve: net.DefaultResolver.LookupHost, good: map[string][]string{}, errs: map[string]error{}}

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
	asked := n.lookups.DoChan(host, func() (any, error) { // ends when the resolver gives up
		found, err := n.resolve(context.Background(), host)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.errs[host] = err; err == nil && len(found) > 0 {
			n.good[host] = found
		}
		return nil, nil
	})
	var patience <-chan time.Time
	if n.unknown(host) == nil {
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
	return n.good[host], nil
}

func (n *names) unknown(host string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if isAddress(host) || len(n.good[host]) > 0 {
		return nil
	}
	why := net.DNSError{Err: "the nameservers have not answered yet", Name: host, IsTimeout: true}
	if dns := (*net.DNSError)(nil); errors.As(n.errs[host], &dns) {
		why = *dns
	} else if err := n.errs[host]; err != nil {
		why.Err = err.Error()
	}
	why.Err += "; " + NotResolved
	return &why
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
	next, last := time.NewTimer(0), error(nil)
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
			if os.IsTimeout(r.err) {
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
