package main

import (
	"fmt"
	"strings"
)

// panelsPage lists what each panel answers, from the words that the panels have.
func panelsPage() []byte {
	var out strings.Builder
	out.WriteString("# What each panel answers\n\nWritten by `make dashboards` from the descriptions of the panels.\n")
	for _, d := range []document{broker(), fleet()} {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n", *d.Title, *d.Description)
		for _, p := range d.Panels {
			if p.RowPanel != nil {
				fmt.Fprintf(&out, "\n### %s: %s\n\n| panel | what it answers |\n|---|---|\n", strings.TrimPrefix(*d.Title, "Holdfast / "), *p.RowPanel.Title)
			} else {
				fmt.Fprintf(&out, "| %s | %s |\n", *p.Panel.Title, *p.Panel.Description)
			}
		}
		out.WriteString("\nMarked in every graph:")
		for _, a := range d.Annotations.List {
			fmt.Fprintf(&out, " %s", strings.ToLower(a.Name))
			if a.Name != d.Annotations.List[len(d.Annotations.List)-1].Name {
				out.WriteString(",")
			}
		}
		out.WriteString(".\n")
	}
	return []byte(out.String())
}
