package pulsar

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strconv"
	"strings"
)

var legal = regexp.MustCompile(`^[-=:.\w]+$`) // Pulsar's rule for tenants, namespaces and clusters

// Bundle is a range of hashes of a namespace: From is in it, To is not, but for the last.
type Bundle struct {
	Namespace string // tenant/ns
	From, To  uint64
}

// Range is the bundle's part of its key: 0x00000000_0x40000000.
func (b Bundle) Range() string { return fmt.Sprintf("0x%08x_0x%08x", b.From, b.To) }

func (b Bundle) String() string { return b.Namespace + "/" + b.Range() }

// Key is the bundle's key in etcd.
func (b Bundle) Key() string { return "/namespace/" + b.String() }

const full = 1<<32 - 1

// bundleOf is the bundle of the namespace that the topic's full name hashes into.
func bundleOf(namespace, topic string, bundles int) Bundle {
	hash := uint64(crc32.ChecksumIEEE([]byte("persistent://" + namespace + "/" + topic)))
	for _, b := range bundlesOf(namespace, bundles) {
		if hash < b.To || b.To == full {
			return b
		}
	}
	panic("a hash lies in no bundle")
}

// bundlesOf splits the hashes evenly.
func bundlesOf(namespace string, n int) []Bundle {
	list := make([]Bundle, n)
	for i := range list {
		list[i] = Bundle{namespace, uint64(i) * (full + 1) / uint64(n), uint64(i+1) * (full + 1) / uint64(n)}
	}
	list[n-1].To = full
	return list
}

// parseBundle finds the bundle of that range; ok is false if the namespace is not split so.
func parseBundle(namespace, text string, n int) (Bundle, bool) {
	from, to, ok := strings.Cut(text, "_")
	if !ok || !strings.HasPrefix(from, "0x") || !strings.HasPrefix(to, "0x") {
		return Bundle{}, false
	}
	lo, err := strconv.ParseUint(from[2:], 16, 32)
	hi, err2 := strconv.ParseUint(to[2:], 16, 32)
	b := Bundle{namespace, lo, hi}
	if err != nil || err2 != nil || b.Range() != text {
		return Bundle{}, false
	}
	for _, known := range bundlesOf(namespace, n) {
		if known == b {
			return b, true
		}
	}
	return Bundle{}, false
}
