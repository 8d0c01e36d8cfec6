package brokerapi

import (
	"strings"
	"unicode"
	"unicode/utf8"
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
