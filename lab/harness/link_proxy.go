package harness

import "fmt"

// proxyLink is a front on the host. What was under way when it is cut is held and delivered after the
// heal. What it cannot show: a peer's kernel still acknowledges packets and completes handshakes, so
// timeouts below the application never fire.
type proxyLink struct{ front *Front }

// NewProxyLink makes a proxy on the loopback of the host. It needs no rights.
func NewProxyLink(l *Lab, e *Etcd) (Link, error) {
	f, err := NewFront(l, fmt.Sprintf("127.0.0.1:%d", e.Port))
	if err != nil {
		return nil, err
	}
	return proxyLink{f}, nil
}

func (proxyLink) Place() Place       { return Place{} }
func (p proxyLink) Endpoint() string { return "http://" + p.front.Addr() }
func (proxyLink) Kind() string       { return "proxy" }
func (p proxyLink) Cut() error       { p.front.hold(true); return nil }
func (p proxyLink) Heal() error      { p.front.hold(false); return nil }
