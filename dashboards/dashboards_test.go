package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
)

func TestTheCommittedFilesAreWhatTheProgramWrites(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	written, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(written) != 3 {
		t.Fatalf("two dashboards and a page expected, not %q (%v)", written, err)
	}
	for _, path := range written {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the program writes: run make dashboards", filepath.Base(path))
		}
	}
}

// Grafana's own types know every field of the schema and of the panels used here; they
// refuse one that is unknown, missing or of another type.
func TestTheFilesAreOfGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for _, name := range []string{"broker.json", "fleet.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var strict, d document
		// A union of types that found nothing wrong returns an error without words.
		if err := strict.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
			t.Errorf("%s: %v", name, err)
		}
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
