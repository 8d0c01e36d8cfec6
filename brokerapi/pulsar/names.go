package pulsar

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"

	"holdfast/brokerapi"
)

// defaultTenant is whose namespaces may be written without a tenant.
const defaultTenant = "public"

var (
	legal  = regexp.MustCompile(`^[-=:.\w]+$`) // Pulsar's rule for tenants, namespaces and clusters
	ranges = regexp.MustCompile(`^0x[0-9a-f]{8}_0x[0-9a-f]{8}$`)
)

// full is the end of the last bundle, which it belongs to.
const full = 1<<32 - 1

// place is what a Holdfast topic names in Pulsar.
type place struct {
	tenant, ns string
	name       string // topic, or range of a bundle
	from, to   uint64 // of a bundle; to is 0: it is a topic
}

func (p place) bundle() bool { return p.to != 0 }

// path is tenant/ns/name, as Pulsar's list of owned bundles has it.
func (p place) path() string { return p.tenant + "/" + p.ns + "/" + p.name }

// topic is the one name of the place.
func (p place) topic() string { return "/" + p.tenant + "~" + p.ns + "/" + p.name }

// within says that the bundle of the place q has the topic of p in its range.
func (p place) within(q place) bool {
	hash := uint64(crc32.ChecksumIEEE([]byte("persistent://" + p.path())))
	return p.tenant == q.tenant && p.ns == q.ns && hash >= q.from && (hash < q.to || q.to == full)
}

// parseTopic takes a Holdfast topic apart. The error says what is wrong with the name.
func parseTopic(topic string) (place, error) {
	namespace, name, err := brokerapi.SplitTopic(topic)
	if err != nil {
		return place{}, err
	}
	tenant, ns, ok := strings.Cut(namespace, "~")
	if !ok {
		tenant, ns = defaultTenant, namespace
	}
	for _, part := range []string{tenant, ns} {
		if !legal.MatchString(part) {
			return place{}, fmt.Errorf("topic %q: %q is no name of a Pulsar tenant or namespace: want /tenant~namespace/topic", topic, part)
		}
	}
	if name == "." || name == ".." {
		return place{}, fmt.Errorf("topic %q: Pulsar cannot be asked about a topic of that name", topic)
	}
	p := place{tenant: tenant, ns: ns, name: name}
	if strings.HasPrefix(name, "0x") && ranges.MatchString(name) {
		if p.from, p.to, ok = parseRange(name); !ok {
			return place{}, fmt.Errorf("topic %q: the bundle's range ends before it begins", topic)
		}
	}
	return p, nil
}

// parseRange reads 0x00000000_0x40000000.
func parseRange(text string) (from, to uint64, ok bool) {
	if !ranges.MatchString(text) {
		return 0, 0, false
	}
	from, err := strconv.ParseUint(text[2:10], 16, 32)
	to, err2 := strconv.ParseUint(text[13:], 16, 32)
	return from, to, err == nil && err2 == nil && from < to
}

// parseOwned reads one name of the list of owned bundles. own says that it belongs to one
// broker for its life.
func parseOwned(name string) (p place, own bool, err error) {
	parts := strings.Split(name, "/")
	if n := len(parts); n == 3 || n == 4 {
		host := strings.Contains(parts[n-2], ":") // is legal in a name of a namespace too
		own = n == 3 && parts[0] == "pulsar" && host || n == 4 && (parts[0] == "pulsar" || parts[0] == "sla-monitor") && host
	}
	from, to, ranged := parseRange(parts[len(parts)-1])
	switch {
	case !ranged:
		return place{}, false, fmt.Errorf("%q is no bundle: want tenant/namespace/0x00000000_0xffffffff", name)
	case own:
		return place{}, true, nil
	case len(parts) == 4:
		return place{}, false, fmt.Errorf("%q is a bundle of a namespace of Pulsar's first form, which this driver does not handle: move its topics to a namespace tenant/namespace", name)
	case len(parts) != 3 || !legal.MatchString(parts[0]) || !legal.MatchString(parts[1]):
		return place{}, false, fmt.Errorf("%q is no bundle: want tenant/namespace/0x00000000_0xffffffff", name)
	}
	return place{tenant: parts[0], ns: parts[1], name: parts[2], from: from, to: to}, false, nil
}

// maxTries bounds the search for a name that hashes into a bundle: enough for one of the
// 65,536th part of its namespace, 64 times over.
const maxTries = 1 << 22

// inside is a topic name that hashes into the bundle: Pulsar hashes the full name with
// CRC32. ok is false for a bundle so narrow that none was found.
func (p place) inside() (name string, ok bool) {
	prefix := crc32.ChecksumIEEE([]byte("persistent://" + p.tenant + "/" + p.ns + "/"))
	text := []byte("holdfast-lookup-")
	start := len(text)
	for n := range maxTries {
		text = strconv.AppendInt(text[:start], int64(n), 36)
		hash := uint64(crc32.Update(prefix, crc32.IEEETable, text))
		if hash >= p.from && (hash < p.to || p.to == full) {
			return string(text), true
		}
	}
	return "", false
}
