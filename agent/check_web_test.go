package agent

import (
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
		c.WebConfigFile = webConfigFile(t, t.TempDir(), tt.file)
		if f, ok := checkWeb(c); !ok || f.Err != nil || f.Text != tt.want || f.Warn != tt.warn {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
	if f, ok := checkWeb(config.Default()); ok {
		t.Errorf("without a file: %+v", f)
	}
}
