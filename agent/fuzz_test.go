package agent

import (
	"os"
	"path/filepath"
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
