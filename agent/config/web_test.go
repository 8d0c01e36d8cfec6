package config

import (
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/fakenet"
)

const (
	cheap  = "$2a$04$QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq.KeKLctwB5G8iyjfKMC"
	costly = "$2a$15$zZ4HxqZDU6lZwpS7PoSUX.7BmtggewYj/Le0t/mxkfa8TYFmbv7oW"
)

func write(t *testing.T, dir, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestABadWebConfigFileNamesSettingFileAndRemedyAndNoSecret(t *testing.T) {
	const form = ": mend it; its form: " + webConfigForm
	for _, tt := range []struct {
		name, file, want string // of the message, %s: the directory
	}{
		{"users", "basic_auth_users:\n  a: " + cheap + "\n", ""},
		{"empty map", "{}\n", ""},
		{"unknown key", "basic_auth: {}\n", "cannot be used: yaml: unmarshal errors:   line 1: field basic_auth not found in type web.Config" + form},
		{"a secret where a map should be", "basic_auth_users: hunter2-is-it\n", "cannot be used: yaml: unmarshal errors:   line 1: cannot unmarshal !!str … into map[string]config.Secret" + form},
		{"a password that is no hash", "basic_auth_users:\n  a: hunter2-is-it\n", "the password of \"a\" is not a bcrypt hash: make one with 'htpasswd -nBC 10 a'"},
		{"a hash that costs too much", "basic_auth_users:\n  ann: " + costly + "\n",
			`the password hash of "ann" has cost 15, and each wrong password would keep a processor busy for that: make it with cost 14 or less, such as 'htpasswd -nBC 10 ann'`},
		{"a certificate that is not there", "tls_server_config:\n  cert_file: gone.pem\n  key_file: key.pem\n",
			"cannot be used: failed to read cert_file (%s/gone.pem): open %s/gone.pem: no such file or directory" + form},
		{"no key", "tls_server_config:\n  cert_file: gone.pem\n", "cannot be used: missing one of key or key_file" + form},
		{"authorities without a demand", "tls_server_config:\n  cert_file: server.pem\n  key_file: server-key.pem\n  client_ca_file: ca.pem\n",
			"cannot be used: client CA's have been configured without a Client Auth Policy" + form},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			fakenet.NewAuthority(t, dir).Server("server")
			path := write(t, dir, "web.yaml", tt.file)
			_, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}, "web-config-file": {path}}})
			want := ""
			if tt.want != "" {
				want = `--web-config-file "` + path + `": ` + strings.ReplaceAll(tt.want, "%s", dir)
			}
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestAWebConfigFileThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	_, err := Load(Sources{Flags: map[string][]string{"driver": {"nats"}, "web-config-file": {path}}})
	if want := `--web-config-file "` + path + `": cannot be read: no such file or directory: check the path and its permissions`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestOnlyPasswordsAndSignedCertificatesAreADemand(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		want       bool
	}{
		{"no file", "", false},
		{"users", "basic_auth_users:\n  a: " + cheap + "\n", true},
		{"no users", "basic_auth_users: {}\n", false},
		{"TLS alone", "tls_server_config:\n  cert_file: c\n", false},
		{"certificates, signed", "tls_server_config:\n  client_auth_type: RequireAndVerifyClientCert\n", true},
		{"certificates, of anybody", "tls_server_config:\n  client_auth_type: RequireAnyClientCert\n", false},
		{"certificates, if there are any", "tls_server_config:\n  client_auth_type: VerifyClientCertIfGiven\n", false},
	} {
		path := ""
		if tt.file != "" {
			path = write(t, t.TempDir(), "web.yaml", tt.file)
		}
		access, err := ReadWebAccess(path)
		r := httptest.NewRequest("POST", "/", nil)
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
		if err != nil || access.Shown(r) != tt.want {
			t.Errorf("%s: %v, %v", tt.name, access.Shown(r), err)
		}
	}
	if _, err := ReadWebAccess(filepath.Join(t.TempDir(), "gone")); !os.IsNotExist(err) && err == nil {
		t.Error("a file that is not there demands nothing?")
	}
}
