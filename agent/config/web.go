package config

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

// WebAccess is what a web config file asks of those who come.
type WebAccess struct {
	TLS          bool
	Users        map[string]string // name: bcrypt hash
	Certificates bool              // a client's, signed by a known authority
}

// Shown reports whether whoever asks had to show a password, which exporter-toolkit has
// judged by the file of now, or a certificate. That is judged at the handshake, if there is
// one: the file may have got its TLS since, and the connection none.
func (w WebAccess) Shown(r *http.Request) bool {
	return len(w.Users) > 0 || w.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}

// ReadWebAccess reads what is needed of the file. exporter-toolkit judges the whole of it.
// No path: it asks nothing.
func ReadWebAccess(path string) (WebAccess, error) {
	if path == "" {
		return WebAccess{}, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return WebAccess{}, fmt.Errorf("read: %w", err)
	}
	var c struct {
		TLS   map[string]any    `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(raw, &c); err != nil {
		return WebAccess{}, fmt.Errorf("read: %w", withoutValues(err))
	}
	return WebAccess{TLS: len(c.TLS) > 0, Users: c.Users, Certificates: c.TLS["client_auth_type"] == "RequireAndVerifyClientCert"}, nil
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
	access, err := ReadWebAccess(path)
	for _, name := range slices.Sorted(maps.Keys(access.Users)) {
		cost, none := bcrypt.Cost([]byte(access.Users[name]))
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
		if file, of := errors.AsType[*fs.PathError](err); of && file.Path != path {
			what = fmt.Sprintf("%s cannot be read: %s", file.Path, Cause(err))
		}
		r.add("web-config-file", "cannot be used: "+what+": mend it; its form: "+webConfigForm)
	}
}
