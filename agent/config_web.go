package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// maxBcryptCost is the costliest password hash that is taken: each step doubles the time
// that a wrong password keeps a processor busy, which is about a second at 14.
const maxBcryptCost = 14

// webConfigForm is where the form of the file is described.
const webConfigForm = "https://github.com/prometheus/exporter-toolkit/blob/v0.20.0/docs/web-configuration.md"

// webAccess is what a web config file asks of those who come.
type webAccess struct {
	tls          bool
	users        map[string]string // name: bcrypt hash
	certificates bool              // a client's, signed by a known authority
}

// shown reports whether whoever asks had to show a password, which exporter-toolkit has
// judged by the file of now, or a certificate. That is judged at the handshake, if there is
// one: the file may have got its TLS since, and the connection none.
func (w webAccess) shown(r *http.Request) bool {
	return len(w.users) > 0 || w.certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// readWebAccess reads what is needed of the file. exporter-toolkit judges the whole of it.
// No path: it asks nothing.
func readWebAccess(path string) (webAccess, error) {
	if path == "" {
		return webAccess{}, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return webAccess{}, fmt.Errorf("read: %w", err)
	}
	var c struct {
		TLS   map[string]any    `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(raw, &c); err != nil {
		return webAccess{}, fmt.Errorf("read: %w", withoutValues(err))
	}
	return webAccess{tls: len(c.TLS) > 0, users: c.Users, certificates: c.TLS["client_auth_type"] == "RequireAndVerifyClientCert"}, nil
}

var yamlValue = regexp.MustCompile("`[^`]*`")

// withoutValues takes out what the parser cites of the file, which may be a secret.
func withoutValues(err error) error {
	return errors.New(yamlValue.ReplaceAllString(strings.ReplaceAll(err.Error(), "\n", " "), "…"))
}

// webConfig checks the file as exporter-toolkit will read it, and what that takes and
// should not be.
func (r *report) webConfig() {
	path := r.c.WebConfigFile
	if path == "" {
		return
	}
	before := len(r.list)
	if r.file("web-config-file", path); len(r.list) > before {
		return
	}
	access, err := readWebAccess(path)
	for _, name := range slices.Sorted(maps.Keys(access.users)) {
		cost, none := bcrypt.Cost([]byte(access.users[name]))
		switch {
		case none != nil:
			r.add("web-config-file", fmt.Sprintf("the password of %q is not a bcrypt hash: make one with 'htpasswd -nBC 10 %[1]s'", name))
			return
		case cost > maxBcryptCost:
			r.add("web-config-file", fmt.Sprintf("the password hash of %q has cost %d, and each wrong password would keep a processor busy for that: make it with cost %d or less, such as 'htpasswd -nBC 10 %s'",
				name, cost, maxBcryptCost, name))
		}
	}
	if err = cmp.Or(web.Validate(path), err); err != nil {
		what := withoutValues(err).Error()
		var file *fs.PathError
		if errors.As(err, &file) && file.Path != path {
			what = fmt.Sprintf("%s cannot be read: %s", file.Path, reason(err))
		}
		r.add("web-config-file", "cannot be used: "+what+": mend it; its form: "+webConfigForm)
	}
}

// checkWeb says what the file asks for; ok is false when there is none to tell of.
func checkWeb(c Config) (f Finding, ok bool) {
	if c.WebConfigFile == "" {
		return Finding{}, false
	}
	f = Finding{What: "web"}
	access, err := readWebAccess(c.WebConfigFile)
	if err != nil { // valid a moment ago
		f.Err = wrongSetting(fmt.Errorf("--web-config-file %q: %w", c.WebConfigFile, err))
		return f, true
	}
	asked := []string{"no TLS"}
	if access.tls {
		asked[0] = "TLS"
	}
	if n := len(access.users); n > 0 {
		asked = append(asked, plural(n, "user"))
		if f.Warn = !access.tls; f.Warn {
			asked = append(asked, "whose passwords pass over the network for all to read: set tls_server_config too")
		}
	}
	if access.certificates {
		asked = append(asked, "client certificates")
	}
	f.Text = c.WebListen + ": " + strings.Join(asked, ", ")
	return f, true
}
