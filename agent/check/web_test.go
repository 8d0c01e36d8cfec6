package check

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast/agent/config"
)

func TestCheckSaysWhatTheWebListenerAsksFor(t *testing.T) {
	for _, tt := range []struct {
		name, file, want string
		warn             bool
	}{
		{"users", "basic_auth_users:\n  a: " + cheapHash + "\n", ":9809: no TLS, 1 user, whose passwords pass over the network for all to read: set tls_server_config too", true},
		{"all", "tls_server_config:\n  cert_file: c\n  client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  a: " + cheapHash + "\n", ":9809: TLS, 1 user, client certificates", false},
	} {
		c := config.Default()
		c.WebConfigFile = webConfigFile(t, tt.file)
		if f, ok := Web(c); !ok || f.Err != nil || f.Text != tt.want || f.Warn != tt.warn {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
	if f, ok := Web(config.Default()); ok {
		t.Errorf("without a file: %+v", f)
	}
}

const cheapHash = "$2a$04$QGPg9.e8aaijE.G3DXwFXuhdyXkclIOFuq.KeKLctwB5G8iyjfKMC"

func webConfigFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
