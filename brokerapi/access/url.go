package access

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// CheckURL reads the URL of one server under one of the schemes; no schemes: any URL. flaw says why it
// cannot be and what to write, and shown is how a message may show it: without a secret.
func CheckURL(raw string, schemes ...string) (u *url.URL, shown, flaw string) {
	like, port, badPort := slices.Concat(schemes, []string{"scheme"})[0]+"://host:port", "", error(nil)
	u, err := url.Parse(raw)
	if err == nil {
		if port = u.Port(); port != "" {
			_, badPort = strconv.ParseUint(port, 10, 16)
		}
	}
	switch {
	case err == nil && u.User != nil:
		if _, has := u.User.Password(); !has { // a token stands where a user does
			u.User = url.User("xxxxx")
		}
		return nil, u.Redacted(), "holds a user or password: secrets come only from files"
	case strings.Contains(raw, "@"):
		return nil, "…", "not a URL, or one that holds a user or password: write " + like
	case err != nil, u.Scheme == "", u.Hostname() == "":
		flaw = "not a URL with a scheme and a host: write " + like
	case badPort != nil, port == "0":
		flaw = "port out of range: write one from 1 to 65535"
	case len(schemes) == 0:
	case !slices.Contains(schemes, u.Scheme):
		flaw = fmt.Sprintf("the scheme %s does not work here: write %s", u.Scheme, like)
	case strings.Contains(u.Host, ","):
		flaw = "names several servers: write the address of one, " + like
	case u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		flaw = "has a query or a fragment: write " + like
	}
	return u, raw, flaw
}

// ParseURL is CheckURL, whose error names the flag.
func ParseURL(flag, raw string, schemes ...string) (*url.URL, error) {
	u, shown, flaw := CheckURL(raw, schemes...)
	if flaw != "" {
		return nil, fmt.Errorf("%s %q: %s", flag, shown, flaw)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

// ParseServer is ParseURL for an address without a path, at that port unless it says another.
func ParseServer(flag, raw, port string, schemes ...string) (*url.URL, error) {
	u, err := ParseURL(flag, raw, schemes...)
	switch {
	case err != nil:
		return nil, err
	case u.Path != "":
		return nil, fmt.Errorf("%s %q: has a path: write %s://host:port", flag, raw, schemes[0])
	case u.Port() == "":
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return u, nil
}
