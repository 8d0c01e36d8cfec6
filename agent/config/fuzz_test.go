package config

import (
	"os"
	"strings"
	"testing"
)

func FuzzSettingsFiles(f *testing.F) {
	f.Add([]byte("driver: nats\nlease-ttl: 32s\netcd-endpoints: [http://a:1, http://b:2]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("driver: http\nbroker-admin: http://[::1]:80/x\nhttp-capabilities: move\n"))
	f.Add([]byte("lease-ttl: 1h\nlease-detach-margin: 59m59s\nrenew-interval: -1s\n"))
	f.Add([]byte("--- a\n--- b\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text := string(raw)
		for _, touches := range []string{"-file", "cert", "key", "state-dir"} { // these look at the disk
			if strings.Contains(text, touches) {
				return
			}
		}
		c, err := Load(Sources{File: "f.yaml", Flags: map[string][]string{"state-dir": {os.TempDir()}},
			Read: func(string) ([]byte, error) { return raw, nil }})
		if err == nil && c.Validate() != nil {
			t.Fatalf("%q is loaded and not valid: %v", raw, c.Validate())
		}
	})
}
