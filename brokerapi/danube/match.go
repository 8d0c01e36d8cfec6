package danube

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// likeness says whether two addresses are one and the same port.
type likeness int

const (
	different likeness = iota
	possible           // nothing speaks against it: one is a loopback, a wildcard or a name
	same
)

// compareAddresses compares scheme://host:port, host:port and [host]:port. It resolves
// no names.
func compareAddresses(a, b string) likeness {
	hostA, portA := hostPort(a)
	hostB, portB := hostPort(b)
	switch {
	case portA == "" || portA != portB:
		return different
	case hostA == hostB:
		return same
	case wildcard(hostA) || wildcard(hostB):
		return possible
	case numeric(hostA) && numeric(hostB) && loopback(hostA) == loopback(hostB):
		return different
	default:
		return possible
	}
}

// hostPort takes an address apart. The names of this machine for itself become one.
func hostPort(address string) (host, port string) {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	address, _, _ = strings.Cut(address, "/")
	colon := strings.LastIndexByte(address, ':')
	if colon < 0 {
		return "", ""
	}
	host, port = strings.ToLower(address[:colon]), address[colon+1:]
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
	if host == "localhost" || host == "::1" {
		host = "127.0.0.1"
	}
	return host, port
}

func wildcard(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
func loopback(host string) bool { return strings.HasPrefix(host, "127.") }
func numeric(host string) bool {
	return host != "" && strings.Trim(host, "0123456789.") == "" || strings.Contains(host, ":")
}

// candidate is a broker as somebody lists it.
type candidate struct {
	ID             string
	Admin          string // address of its admin port, as it advertises it
	Lookup         string // address of its client port
	CreateRevision int64  // of its registration; 0: not from the registrations
}

// parseRegistration reads the value of a broker's registration. One that cannot be read
// is no candidate: it says nothing about any address.
func parseRegistration(r Registration) (candidate, bool) {
	var v struct {
		Broker string `json:"broker_url"`
		Admin  string `json:"admin_addr"`
	}
	if r.BrokerID == "" || json.Unmarshal(r.Value, &v) != nil || v.Admin == "" {
		return candidate{}, false
	}
	return candidate{ID: r.BrokerID, Admin: v.Admin, Lookup: v.Broker, CreateRevision: r.CreateRevision}, true
}

// evidence is what is known about who answers at the admin address.
type evidence struct {
	Admin, Lookup string      // as set
	Metrics       string      // as set, for messages
	Apart         bool        // the metrics are set to another host than the admin API
	Told          string      // the id that the metrics carry; empty: not known
	Silence       error       // why it is not known
	Verified      string      // the id that was found out on this very connection; empty: none yet
	Believed      []candidate // the broker's own list of brokers
	Asked         bool        // Registered has been read
	Registered    []candidate // the registrations in etcd
}

// errUnsettled is wrapped when the evidence does not suffice; it may later.
var errUnsettled = errors.New("cannot tell which broker this is")

// judge says which broker it is. ask means that the registrations would help: read them
// and judge again. It never guesses: what is ambiguous or contradicts is an error.
//
// The metrics come first, because they are the process itself; a list that shows their
// id must not show it at another address. Without metrics, and on a connection that no
// id was found for, it is the youngest registration at this very address, and only if
// the broker knows it: a broker that has just started has not registered yet, and its
// predecessor's registration lingers.
func (e evidence) judge() (id string, ask bool, err error) {
	switch {
	case e.Told == "":
		return e.withoutMetrics()
	case e.Told == e.Verified:
		return e.Told, false, nil
	}
	told, listed := find(e.Believed, e.Told)
	if !listed {
		if !e.Asked {
			return "", true, nil
		}
		told, listed = find(e.Registered, e.Told)
	}
	here := e.here(append(slices.Clone(e.Believed), e.Registered...))
	switch {
	case listed && e.like(told) == different:
		return "", false, identityErrorf("--danube-metrics %s is broker %s, which has its admin API at %s, and --broker-admin is %s: set both to ports of the same broker",
			e.Metrics, e.Told, shown(told.Admin), e.Admin)
	case listed && e.like(told) == same:
		return e.Told, false, nil
	}
	for _, other := range here {
		if other.ID != e.Told {
			return "", false, fmt.Errorf("%w: --danube-metrics %s is broker %s, and --broker-admin %s is where broker %s is registered: wait until the old registration is gone, or set both to ports of the same broker",
				errUnsettled, e.Metrics, e.Told, e.Admin, shown(other.ID))
		}
	}
	if e.Apart { // nothing says that the two are of one broker
		return "", false, fmt.Errorf("%w: --danube-metrics %s is broker %s, and nothing shows that --broker-admin %s, on another host, is too: write the same host in both, or --broker-admin as the broker advertises it",
			errUnsettled, e.Metrics, e.Told, e.Admin)
	}
	return e.Told, false, nil
}

// apart reports whether two addresses are on different hosts, or may be.
func apart(a, b string) bool {
	hostA, _ := hostPort(a)
	hostB, _ := hostPort(b)
	return hostA != hostB
}

func (e evidence) withoutMetrics() (id string, ask bool, err error) {
	if e.Verified != "" {
		return e.Verified, false, nil
	}
	if !e.Asked {
		return "", true, nil
	}
	here := e.here(e.Registered)
	if len(here) == 0 {
		return "", false, fmt.Errorf("%w: no registration has its admin address, %s, and %w: let --danube-metrics be reached, or write --broker-admin as the broker advertises it",
			errUnsettled, e.Admin, e.Silence)
	}
	youngest := slices.MaxFunc(here, func(a, b candidate) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) })
	if _, believed := find(e.Believed, youngest.ID); !believed {
		return "", false, fmt.Errorf("%w: the youngest registration at %s is broker %s, which the broker there does not know, and %w",
			errUnsettled, e.Admin, youngest.ID, e.Silence)
	}
	return youngest.ID, false, nil
}

// here are those that are certainly at the address that was set.
func (e evidence) here(list []candidate) []candidate {
	return slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return e.like(c) != same })
}

// like compares a broker's addresses with those that were set. Where the admin address
// may be the same, the same client address decides.
func (e evidence) like(c candidate) likeness {
	l := compareAddresses(c.Admin, e.Admin)
	if l == possible && compareAddresses(c.Lookup, e.Lookup) == same {
		return same
	}
	return l
}

// neighbour is the broker whose client port the address certainly is, where the broker
// with that id says of itself that its own is elsewhere. ok is false when nothing is
// certain: what a broker advertises need not be how it is reached from beside it.
func neighbour(list []candidate, id, lookup string) (other candidate, ok bool) {
	own, listed := find(list, id)
	if !listed || own.Lookup == "" || compareAddresses(own.Lookup, lookup) == same {
		return candidate{}, false
	}
	i := slices.IndexFunc(list, func(c candidate) bool { return c.ID != id && compareAddresses(c.Lookup, lookup) == same })
	if i < 0 {
		return candidate{}, false
	}
	return list[i], true
}

func find(list []candidate, id string) (candidate, bool) {
	i := slices.IndexFunc(list, func(c candidate) bool { return c.ID == id })
	if i < 0 {
		return candidate{}, false
	}
	return list[i], true
}
