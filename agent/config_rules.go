package agent

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Rules that hold for several settings.

func (r *report) file(name, path string) {
	f, err := os.Open(path)
	if err != nil {
		r.add(name, "cannot be read: "+reason(err)+": check the path and its permissions")
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		r.add(name, "cannot be read: "+reason(err)+": check the path and its permissions")
	case info.IsDir():
		r.add(name, "is a directory: give a file")
	case info.Mode().IsRegular() && info.Size() == 0:
		r.add(name, "is empty: check what should have written it")
	}
}

// url checks scheme and host; no schemes: any. A password is refused and not shown.
func (r *report) url(name, value string, schemes ...string) bool {
	bad := func(shown, text string) bool {
		r.list = append(r.list, problem{[]string{name}, fmt.Sprintf("%s %q: %s", r.label(name), shown, text)})
		return false
	}
	if path, ok := unixPath(value); ok && slices.Contains(schemes, "unix") {
		return path != "" || bad(value, "no path: write unix:///path/to/socket")
	}
	like := "scheme://host:port"
	if len(schemes) > 0 {
		like = schemes[0] + "://host:port"
	}
	u, err := url.Parse(value)
	if err == nil && u.User != nil {
		return bad(u.Redacted(), "holds a user or password: secrets come only from files")
	}
	if strings.Contains(value, "@") {
		return bad("…", "not a URL, or one that holds a user or password: write "+like)
	}
	if err != nil || u.Scheme == "" || u.Host == "" || u.Hostname() == "" {
		return bad(value, "not a URL with a scheme and a host: write "+like)
	}
	if len(schemes) > 0 && !slices.Contains(schemes, u.Scheme) {
		return bad(value, fmt.Sprintf("the scheme %s does not work here: write %s", u.Scheme, like))
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return bad(value, "port out of range: write one from 1 to 65535")
		}
	}
	return true
}

func (r *report) listen(name, value string) bool {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	r.when(err != nil, name, "not an address to listen on: write :port or host:port, with a port from 0 to 65535")
	return err == nil
}

// unixPath is the path of unix:///path and unixs:///path.
func unixPath(value string) (string, bool) {
	for _, scheme := range []string{"unix://", "unixs://"} {
		if path, ok := strings.CutPrefix(value, scheme); ok {
			return path, true
		}
	}
	return "", false
}
