// Command dashboards writes the Grafana dashboards of Holdfast: broker.json, one
// broker at a time, and fleet.json, all of them; and panels.md, what each panel answers.
//
// It is a module of its own, so that the sidecar does not need Grafana's library. The
// files beside it are what it wrote; a test compares. Guaranteed: the same program writes
// the same bytes, and the uids never change. Not guaranteed: that the id of a panel stays
// when others are added; and here, that a query finds anything: lab/dashboards asks each
// of them of a real scrape.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// document is a dashboard of schema 42, which can be imported and provisioned as a file.
//
//lint:ignore SA1019 its successor is for resources of the newest Grafana's API only.
type document = dashboard.Dashboard

func main() {
	dir := flag.String("out", ".", "directory to write broker.json, fleet.json and panels.md to")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

// write writes every dashboard, and the page about them, into a directory that exists.
func write(dir string) error {
	files := map[string][]byte{"panels.md": panelsPage()}
	for name, d := range map[string]document{"broker.json": broker(), "fleet.json": fleet()} {
		text, err := render(d)
		if err != nil {
			return fmt.Errorf("generate %s: %w", name, err)
		}
		files[name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write dashboards: %w", err)
		}
	}
	return nil
}

// render is the dashboard as Grafana reads it. It fails where Grafana's own types say
// that something is missing.
func render(d document) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}
