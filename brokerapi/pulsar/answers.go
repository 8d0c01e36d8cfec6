package pulsar

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"holdfast/brokerapi"
)

// ownership is what the broker says of one bundle.
type ownership struct {
	Active *bool `json:"is_active"`
}

// owned is the list of bundles that the broker owns, apart from those that are its own
// for life.
type owned struct {
	serving []place
	leaving []place // on their way out: their topics are closed
	// unreadable is what else it owns, as brokerapi.Unreadable shows it: any client makes
	// one by looking up a topic with a slash in its name.
	unreadable []string
}

// parseOwnedList reads each entry by itself. A bundle that does not say whether it is active
// counts as served.
func parseOwnedList(list map[string]json.RawMessage) owned {
	var o owned
	for _, name := range slices.Sorted(maps.Keys(list)) {
		var status ownership
		p, own, err := parseOwned(name)
		switch statusErr := json.Unmarshal(list[name], &status); {
		case own:
		case err != nil:
			o.unreadable = append(o.unreadable, brokerapi.Unreadable(name))
		case statusErr != nil || status.Active == nil || *status.Active:
			o.serving = append(o.serving, p)
		default:
			o.leaving = append(o.leaving, p)
		}
	}
	return o
}

// lookup is the answer to a lookup.
type lookup struct {
	HTTPURL    string `json:"httpUrl"`
	HTTPURLTLS string `json:"httpUrlTls"`
}

// owner is the host:port of who serves the topic.
func (l lookup) owner() (string, error) {
	for _, raw := range []string{l.HTTPURL, l.HTTPURLTLS} {
		if raw == "" {
			continue
		}
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return "", fmt.Errorf("%q is not the URL of a broker", raw)
		}
		return u.Host, nil
	}
	return "", fmt.Errorf("it does not say who serves the topic: httpUrl is missing")
}

// maxVersion is how long a version may be, in bytes.
const maxVersion = 64

// parseVersion accepts what can be shown in one line.
func parseVersion(body []byte) (string, error) {
	text := strings.TrimSpace(string(body))
	var quoted string
	if json.Unmarshal(body, &quoted) == nil { // some answer a JSON string
		text = quoted
	}
	if text == "" || len(text) > maxVersion {
		return "", fmt.Errorf("has %d bytes, want a version", len(text))
	}
	for _, r := range text {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return "", fmt.Errorf("is not a version")
		}
	}
	return text, nil
}
