package access

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// ParseURL accepts the address of one server under one of the schemes. Errors name the flag,
// and secrets says where credentials go instead.
func ParseURL(flag, raw, secrets string, schemes ...string) (*url.URL, error) {
	want := "want " + schemes[0] + "://host:port"
	if strings.Contains(raw, "@") {
		return nil, fmt.Errorf("%s holds credentials, which would show in logs: %s (%s)", flag, want, secrets)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s %q: not a URL: %s", flag, raw, want)
	case strings.Contains(u.Host, ","):
		return nil, fmt.Errorf("%s %q: names several servers: want this broker's own address, %s", flag, raw, schemes[0]+"://host:port")
	case !slices.Contains(schemes, u.Scheme), u.Hostname() == "":
		return nil, fmt.Errorf("%s %q: want %s://host:port", flag, raw, strings.Join(schemes, "://host:port, or "))
	case u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return nil, fmt.Errorf("%s %q: has a query or a fragment: %s", flag, raw, want)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

// ParseServer is ParseURL for an address without a path, at that port unless it says another.
func ParseServer(flag, raw, port, secrets string, schemes ...string) (*url.URL, error) {
	u, err := ParseURL(flag, raw, secrets, schemes...)
	switch {
	case err != nil:
		return nil, err
	case u.Path != "":
		return nil, fmt.Errorf("%s %q: has a path: want %s://host:port", flag, raw, schemes[0])
	case u.Port() == "":
		u.Host = net.JoinHostPort(u.Hostname(), port)
	}
	return u, nil
}
