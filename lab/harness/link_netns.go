package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// netnsLink is a network namespace with one veth pair to the host. Cut drops
// packets behind the back of their sender, as a dead switch would.
//
// An OUTPUT rule in the namespace would not do: the kernel tells the sending socket
// that its packet was refused, so TCP has nothing in flight, and every new write is
// tried at once instead of waiting for a retransmission that has backed off. A
// program would recover in no time that takes half a minute in a real black hole.
// So packets to the host leave for a hardware address that nobody has, and the host
// drops them; packets from etcd are dropped as they enter the namespace.
//
// Each server of a link has an address of its own on the host's end, so that it alone
// can be cut off.
type netnsLink struct {
	space    *netns
	address  string // of the server, on the host's end
	etcdPort string

	mu  sync.Mutex
	cut bool
}

// netns is the namespace and its way to the host.
type netns struct {
	place   Place
	inside  string // name of the veth in the namespace
	hostMAC string
}

// NewNetnsLink makes a namespace with a subnet of its own out of 10.213.0.0/16.
func NewNetnsLink(l *Lab, e *Etcd) (Link, error) {
	links, err := newNetnsLinks(l, e)
	if err != nil {
		return nil, err
	}
	return links[0], nil
}

// newNetnsLinks makes one namespace with a link to each server.
func newNetnsLinks(l *Lab, servers ...*Etcd) ([]Link, error) {
	x, release, err := reserveSubnet()
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	l.onClose(release)
	name := "hf-" + strconv.Itoa(x)
	outside := fmt.Sprintf("hfo%d", x)
	n := &netns{place: Place{Namespace: name}, inside: fmt.Sprintf("hfi%d", x)}
	remove := func() error {
		// The host's end goes first: a namespace goes only with its last process,
		// and its veth with it.
		_, absent := os.Stat("/sys/class/net/" + outside)
		var errs []error
		if absent == nil {
			errs = append(errs, runCmd("", "ip", "link", "del", outside))
		}
		if _, err := os.Stat("/run/netns/" + name); err == nil {
			errs = append(errs, runCmd("", "ip", "netns", "del", name))
		}
		return errors.Join(errs...)
	}
	// The subnet is ours, so what is there under its name was left by a lab that
	// was killed.
	if err := remove(); err != nil {
		return nil, fmt.Errorf("remove namespace that was left behind: %w", err)
	}
	l.onClose(remove)
	type step struct {
		in   string
		args []string
	}
	steps := []step{
		{"", []string{"netns", "add", name}},
		{"", []string{"link", "add", outside, "type", "veth", "peer", "name", n.inside, "netns", name}},
	}
	var links []Link
	for i, e := range servers {
		k := &netnsLink{space: n, address: fmt.Sprintf("10.213.%d.%d", x, 100+i), etcdPort: strconv.Itoa(e.Port)}
		links = append(links, k)
		steps = append(steps, step{"", []string{"addr", "add", k.address + "/24", "dev", outside}})
	}
	steps = append(steps, []step{
		{"", []string{"link", "set", outside, "up"}},
		{name, []string{"link", "set", "lo", "up"}},
		{name, []string{"addr", "add", fmt.Sprintf("10.213.%d.2/24", x), "dev", n.inside}},
		{name, []string{"link", "set", n.inside, "up"}},
	}...)
	for _, s := range steps {
		if err := runCmd(s.in, "ip", s.args...); err != nil {
			return nil, fmt.Errorf("make namespace: %w", err)
		}
	}
	mac, err := os.ReadFile("/sys/class/net/" + outside + "/address")
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	n.hostMAC = strings.TrimSpace(string(mac))
	return links, nil
}

// nobodyMAC is locally administered; no veth of ours has it.
const nobodyMAC = "02:00:00:00:00:01"

// sendTo says which hardware address the server has, as seen from the namespace.
func (n *netnsLink) sendTo(mac string) error {
	return runCmd(n.space.place.Namespace, "ip", "neigh", "replace", n.address, "lladdr", mac, "nud", "permanent", "dev", n.space.inside)
}

// drop adds (-A) or deletes (-D) the rule that drops what comes from the server.
func (n *netnsLink) drop(action string) error {
	return runCmd(n.space.place.Namespace, "iptables", "-w", action, "INPUT", "-i", n.space.inside,
		"-s", n.address, "-p", "tcp", "--sport", n.etcdPort, "-j", "DROP")
}

func (n *netnsLink) Place() Place     { return n.space.place }
func (n *netnsLink) Endpoint() string { return "http://" + net.JoinHostPort(n.address, n.etcdPort) }
func (n *netnsLink) Kind() string     { return "netns" }

func (n *netnsLink) Cut() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		return nil
	}
	if err := n.sendTo(nobodyMAC); err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	if err := n.drop("-A"); err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	n.cut = true
	return nil
}

func (n *netnsLink) Heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.cut {
		return nil
	}
	if err := n.drop("-D"); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := n.sendTo(n.space.hostMAC); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	n.cut = false
	return nil
}
