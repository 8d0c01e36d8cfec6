package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// know makes a driver known for one test.
func know(t *testing.T, name string, d Driver) {
	t.Helper()
	Drivers[name] = d
	t.Cleanup(func() { delete(Drivers, name) })
}

func TestAccessToTheAdminAPIIsValidated(t *testing.T) {
	know(t, "web", Driver{Admin: "http://127.0.0.1:8080", Registration: "own", Failover: "hold", AdminSchemes: []string{"http", "https"}})
	dir := t.TempDir()
	full, empty := filepath.Join(dir, "full"), filepath.Join(dir, "empty")
	for name, content := range map[string]string{full: "x\n", empty: ""} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		given map[string]string // settings, by flag
		env   map[string]string
		file  string
		want  string // empty: valid
	}{
		{name: "none"},
		{name: "token to this machine, by address", given: map[string]string{"broker-token-file": full}},
		{name: "token to this machine, by name", given: map[string]string{"broker-token-file": full, "broker-admin": "http://localhost:1"}},
		{name: "token to this machine, by IPv6", given: map[string]string{"broker-token-file": full, "broker-admin": "http://[::1]:1"}},
		{name: "token over TLS", given: map[string]string{"broker-token-file": full, "broker-admin": "https://b:1"}},
		{name: "all of it over TLS", given: map[string]string{"broker-admin": "https://b:1", "broker-token-file": full,
			"broker-cacert": full, "broker-cert": full, "broker-key": full}},
		{name: "token over the network", given: map[string]string{"broker-token-file": full, "broker-admin": "http://b:1/x"},
			want: `--broker-token-file "` + full + `": --broker-admin "http://b:1/x" would send it over the network for all to read: write https://b:1/x, or leave it out`},
		{name: "token over the network, by environment", env: map[string]string{"HOLDFAST_BROKER_TOKEN_FILE": full, "HOLDFAST_BROKER_ADMIN": "http://10.0.0.1:1"},
			want: `HOLDFAST_BROKER_TOKEN_FILE "` + full + `": HOLDFAST_BROKER_ADMIN "http://10.0.0.1:1" would send it over the network for all to read: write https://10.0.0.1:1, or leave it out`},
		{name: "token over the network, by file", file: "broker-token-file: " + full + "\nbroker-admin: http://b:1\n",
			want: `f.yaml:1: broker-token-file "` + full + `": f.yaml:2: broker-admin "http://b:1" would send it over the network for all to read: write https://b:1, or leave it out`},
		{name: "token to a Danube broker's client port over the network", given: map[string]string{"driver": "danube", "broker-token-file": full,
			"broker-admin": "https://b:1", "danube-lookup": "http://b:2", "broker-id": "n1", "broker-pid-file": "/p"},
			want: `--broker-token-file "` + full + `": --danube-lookup "http://b:2" would send it over the network for all to read: write https://b:2, or leave it out`},
		{name: "token to a Danube broker's client port over TLS", given: map[string]string{"driver": "danube", "broker-token-file": full,
			"broker-admin": "https://b:1", "danube-lookup": "https://b:2", "broker-id": "n1", "broker-pid-file": "/p"}},
		{name: "token missing", given: map[string]string{"broker-token-file": "/nowhere/token"},
			want: `--broker-token-file "/nowhere/token": cannot be read: no such file or directory: check the path and its permissions`},
		{name: "token empty", given: map[string]string{"broker-token-file": empty},
			want: `--broker-token-file "` + empty + `": is empty: check what should have written it`},
		{name: "authorities without TLS", given: map[string]string{"broker-cacert": full},
			want: `--broker-cacert "` + full + `": --broker-admin "http://127.0.0.1:8080" speaks no TLS: write https://127.0.0.1:8080, or leave it out`},
		{name: "certificate without a key", given: map[string]string{"broker-cert": full, "broker-admin": "https://b:1"},
			want: `--broker-cert "` + full + `": not without --broker-key: give that too`},
		{name: "key without a certificate", given: map[string]string{"broker-key": full, "broker-admin": "https://b:1"},
			want: `--broker-key "` + full + `": not without --broker-cert: give that too`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := Sources{Flags: map[string][]string{"driver": {"web"}}, Env: env(tt.env)}
			for name, value := range tt.given {
				src.Flags[name] = []string{value}
			}
			if tt.file != "" {
				src.File, src.Read = "f.yaml", file(tt.file)
			}
			got := ""
			if _, err := Load(src); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestAnEmptyAdminAddressIsRefusedWithAnExample(t *testing.T) {
	for scheme, schemes := range map[string][]string{"http": nil, "grpc": {"grpc", "grpcs"}} {
		know(t, "any", Driver{Registration: "own", Failover: "hold", AdminSchemes: schemes})
		_, err := Load(Sources{Flags: map[string][]string{"driver": {"any"}, "broker-admin": {""}, "state-dir": {t.TempDir()}}})
		if err == nil || !strings.Contains(err.Error(), "--broker-admin: required with the driver any") || !strings.Contains(err.Error(), "such as "+scheme+"://127.0.0.1:8090") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}
