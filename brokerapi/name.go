package brokerapi

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/xrash/smetrics"
)

// NameFlaw says why no broker can go by the name, whether it calls itself so or is given it;
// empty: one can. The name is part of keys in etcd, and is shown to people.
func NameFlaw(name string) string {
	switch {
	case strings.Contains(name, "/"):
		return "holds a slash, which separates keys in etcd"
	case strings.TrimSpace(name) != name:
		return "starts or ends with a space"
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return "holds a character that cannot be shown"
	}
	return ""
}

// Misnamed says that the broker at --broker-admin goes by another name than the one wanted; nil: it
// does not, or it has none that a broker can go by, and --broker-id is its name.
func Misnamed(admin, name, want string) error {
	if want == "" || name == "" || name == want || NameFlaw(name) != "" {
		return nil
	}
	return Errorf(ErrIdentity, "--broker-admin %s: the broker there calls itself %q, --broker-id says %q: point --broker-admin at %s's own address, or set --broker-id to %s",
		admin, name, want, want, name)
}

// Nearest returns the candidate that a person most likely meant by name, or empty if none
// is near.
func Nearest(name string, candidates []string) string {
	best, most := "", 0.87
	for _, c := range candidates {
		if likeness := smetrics.JaroWinkler(name, c, 0.7, 4); likeness > most {
			best, most = c, likeness
		}
	}
	return best
}
