package harness

import (
	"errors"
	"fmt"
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
type netnsLink struct {
	place    Place
	inside   string // name of the veth in the namespace
	host     string // IP address of the host's end
	hostMAC  string
	etcdPort string
	endpoint string

	mu  sync.Mutex
	cut bool
}

// NewNetnsLink makes a namespace with a subnet of its own out of 10.213.0.0/16.
func NewNetnsLink(l *Lab, e *Etcd) (Link, error) {
	x, release, err := reserveSubnet()
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	l.onClose(release)
	name := "hf-" + strconv.Itoa(x)
	outside := fmt.Sprintf("hfo%d", x)
	n := &netnsLink{
		place:    Place{Namespace: name},
		inside:   fmt.Sprintf("hfi%d", x),
		host:     fmt.Sprintf("10.213.%d.1", x),
		etcdPort: strconv.Itoa(e.Port),
		endpoint: fmt.Sprintf("http://10.213.%d.1:%d", x, e.Port),
	}
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
	for _, step := range []struct {
		in   string
		args []string
	}{
		{"", []string{"netns", "add", name}},
		{"", []string{"link", "add", outside, "type", "veth", "peer", "name", n.inside, "netns", name}},
		{"", []string{"addr", "add", n.host + "/24", "dev", outside}},
		{"", []string{"link", "set", outside, "up"}},
		{name, []string{"link", "set", "lo", "up"}},
		{name, []string{"addr", "add", fmt.Sprintf("10.213.%d.2/24", x), "dev", n.inside}},
		{name, []string{"link", "set", n.inside, "up"}},
	} {
		if err := runCmd(step.in, "ip", step.args...); err != nil {
			return nil, fmt.Errorf("make namespace: %w", err)
		}
	}
	mac, err := os.ReadFile("/sys/class/net/" + outside + "/address")
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	n.hostMAC = strings.TrimSpace(string(mac))
	return n, nil
}

// nobodyMAC is locally administered; no veth of ours has it.
const nobodyMAC = "02:00:00:00:00:01"

// sendTo says which hardware address the host has, as seen from the namespace.
func (n *netnsLink) sendTo(mac string) error {
	return runCmd(n.place.Namespace, "ip", "neigh", "replace", n.host, "lladdr", mac, "nud", "permanent", "dev", n.inside)
}

func (n *netnsLink) Place() Place     { return n.place }
func (n *netnsLink) Endpoint() string { return n.endpoint }
func (n *netnsLink) Kind() string     { return "netns" }

func (n *netnsLink) Cut() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		return nil
	}
	in := []string{"-w", "-A", "INPUT", "-i", n.inside, "-p", "tcp", "--sport", n.etcdPort, "-j", "DROP"}
	if err := n.sendTo(nobodyMAC); err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	if err := runCmd(n.place.Namespace, "iptables", in...); err != nil {
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
	if err := runCmd(n.place.Namespace, "iptables", "-w", "-F"); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := n.sendTo(n.hostMAC); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	n.cut = false
	return nil
}
