package pulsar

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"unicode"
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
}

// parseOwnedList checks the list as a whole: one name that cannot be read makes all of it
// unusable, since what is left out would count as not served.
func parseOwnedList(list map[string]ownership) (owned, error) {
	var o owned
	for name, status := range list {
		p, own, err := parseOwned(name)
		switch {
		case err != nil:
			return owned{}, err
		case status.Active == nil:
			return owned{}, fmt.Errorf("bundle %q: does not say whether it is_active", name)
		case own:
		case *status.Active:
			o.serving = append(o.serving, p)
		default:
			o.leaving = append(o.leaving, p)
		}
	}
	return o, nil
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
