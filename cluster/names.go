package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// notResolved marks what says nothing of etcd: its name was not resolved. gRPC keeps only the
// text of a dialer's error, so the mark must be text.
const notResolved = "the name was not resolved"

// rememberedAfter is how long a lookup may take before the addresses of the one before are
// used instead.
const rememberedAfter = 200 * time.Millisecond

// names resolves host names. A lookup has the time that resolv.conf gives it, and not that of
// the connect which asked: where the first of two nameservers is dead, that is longer. The last
// good addresses are remembered, and used while the name cannot be resolved.
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

// hosts are those of this process.
var hosts = &names{resolve: net.DefaultResolver.LookupHost, known: map[string]*name{}}

// Resolve looks up the names of all endpoints, and waits for as long as that takes: what is asked
// of etcd afterwards has its time for etcd. What was not resolved is told by the next request.
func Resolve(ctx context.Context, cfg Config) {
	endpoints, _ := cfg.validate()
	var all sync.WaitGroup
	for _, e := range endpoints {
		if host, _, err := net.SplitHostPort(e.addr); err == nil {
			all.Go(func() { _, _ = hosts.lookup(ctx, host) })
		}
	}
	all.Wait()
}

// Unresolved reports whether a name was not resolved: that says nothing of etcd.
func Unresolved(err error) bool { return err != nil && strings.Contains(err.Error(), notResolved) }

// lookup returns the addresses of a host.
func (n *names) lookup(ctx context.Context, host string) ([]string, error) {
	if host == "" || net.ParseIP(host) != nil {
		return []string{host}, nil // without a host: this machine
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
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.known[host]
	if len(k.good) > 0 {
		return k.good, nil
	}
	why := "the nameservers have not answered yet"
	var dns *net.DNSError
	switch {
	case k.asked == asked:
	case errors.As(k.err, &dns) && dns.Server != "":
		why = fmt.Sprintf("%s, says %s", dns.Err, dns.Server)
	case errors.As(k.err, &dns):
		why = dns.Err
	case k.err != nil:
		why = k.err.Error()
	}
	return nil, fmt.Errorf("lookup of %s failed: %s; %s", host, why, notResolved)
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
