package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSettingsOfTheHTTPDriverAreValidated(t *testing.T) {
	for _, tt := range []struct {
		name  string
		given map[string]string // settings, by flag, beside the driver
		want  string            // empty: valid
	}{
		{name: "no address", given: map[string]string{"broker-admin": ""},
			want: `--broker-admin: required with the driver http: give the URL of the broker's admin API, such as http://127.0.0.1:8090`},
		{name: "whole contract"},
		{name: "each word", given: map[string]string{"http-capabilities": "local-data,must-stop,places", "i-know": "true"}},
		{name: "https", given: map[string]string{"broker-admin": "https://b:1/base"}},
		{name: "another scheme", given: map[string]string{"broker-admin": "grpc://b:1"},
			want: `--broker-admin "grpc://b:1": the scheme grpc does not work here: write http://host:port`},
		{name: "a capability that there is not", given: map[string]string{"http-capabilities": "places,fly"},
			want: `--http-capabilities "places,fly": no capability is called "fly": known are local-data, must-stop, places`},
		{name: "a word of before", given: map[string]string{"http-capabilities": "local-data,end"},
			want: `--http-capabilities "local-data,end": end is no word of this version: leave it out: give --broker-pid-file, --broker-process or --stop-command`},
		{name: "another driver", given: map[string]string{"driver": "nats", "broker-admin": "nats://b:1", "http-capabilities": "quiesce"},
			want: `--http-capabilities "quiesce": only the driver http has a use for it: leave it out`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := map[string][]string{"driver": {"http"}, "broker-admin": {"http://127.0.0.1:8090"}, "state-dir": {t.TempDir()}}
			for name, value := range tt.given {
				if flags[name] = []string{value}; value == "" {
					delete(flags, name)
				}
			}
			_, err := Load(Sources{Flags: flags})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || strings.TrimSpace(err.Error()) != tt.want):
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestTheHTTPDriverTakesItsSettings(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Driver, c.BrokerAdmin, c.BrokerTokenFile = "http", "http://127.0.0.1:1", token
	b, err := newHTTP(c.Effective(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got := strings.Join(c.Effective().Traits().List(), ","); got != "local-data" {
		t.Errorf("capabilities %s", got)
	}
	c.BrokerTokenFile = token + "x"
	if b, err := newHTTP(c.Effective(), nil, nil); err == nil {
		b.Close()
		t.Error("took a token file that is not there")
	}
}
