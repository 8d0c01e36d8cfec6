package harness

import (
	"fmt"
	"os"
	"os/exec"
)

// Link is the path between one place, where a broker and its sidecar live, and
// etcd. Only this path can be cut: clients of the broker, and the lab itself,
// always get through, which is the worst case for a broker that lost its cluster.
type Link interface {
	// Place is where to start the broker and its sidecar.
	Place() Place
	// Endpoint is etcd's URL as seen from the place, through the link.
	Endpoint() string
	// Cut lets nothing through in either direction: no refusal, no reset.
	// Cutting what is cut changes nothing.
	Cut() error
	// Heal undoes Cut. Healing what is whole changes nothing.
	Heal() error
	// Kind is "netns" or "proxy".
	Kind() string
}

// CutVariable, set to "proxy", keeps NewLink from using network namespaces.
const CutVariable = "HOLDFAST_LAB_CUT"

// NewLink makes the best link that this machine allows: packets really dropped in
// a network namespace where we are root, a proxy that holds everything back
// otherwise. It ends with the lab.
func NewLink(l *Lab, e *Etcd) (Link, error) {
	if CanDropPackets() == nil {
		return NewNetnsLink(l, e)
	}
	return NewProxyLink(l, e)
}

// NewLinks makes the best links that this machine allows from one place to several
// servers. Each is cut by itself.
func NewLinks(l *Lab, servers ...*Etcd) ([]Link, error) {
	if CanDropPackets() == nil {
		return newNetnsLinks(l, servers...)
	}
	var links []Link
	for _, e := range servers {
		link, err := NewProxyLink(l, e)
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

// Endpoints is the URLs of servers as seen through their links.
func Endpoints(links []Link) []string {
	var urls []string
	for _, link := range links {
		urls = append(urls, link.Endpoint())
	}
	return urls
}

// CanDropPackets is nil if links may be network namespaces, else it says why not.
func CanDropPackets() error {
	if os.Getenv(CutVariable) == "proxy" {
		return fmt.Errorf("%s=proxy is set", CutVariable)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces need root")
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("network namespaces need %s: %w", tool, err)
		}
	}
	return nil
}
