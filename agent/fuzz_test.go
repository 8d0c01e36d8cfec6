package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzStateFilesAreReadOrPutAside(f *testing.F) {
	f.Add([]byte(`{"format":1,"broker_id":"n1","incarnation":"0123456789abcdef0123456789abcdef","mode":"active","pause":{"until":"x"}}`))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{`))
	f.Add([]byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "state.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := (&stateDir{path: dir}).load()
		if err != nil || m.Format != memoryFormat || len(m.Incarnation) != 32 {
			t.Fatalf("%q became %+v, %v", raw, m, err)
		}
		kept, err := os.ReadFile(filepath.Join(dir, "state.json.corrupt"))
		if aside := err == nil; aside && (string(kept) != string(raw) || m.Distrust == "") {
			t.Fatalf("%q was put aside as %q, distrust %q", raw, kept, m.Distrust)
		}
	})
}

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
