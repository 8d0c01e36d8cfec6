// Package dashboards tests the Grafana dashboards in dashboards/ as an outside reader of
// their JSON: that they keep the rules, and that each query finds what it asks for in a
// real scrape of real sidecars.
//
// Not tested: that Grafana draws them. It is not here; its own types check the files
// where they are generated.
package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// board is what is read of a dashboard.
type board struct {
	UID        string  `json:"uid"`
	Links      []link  `json:"links"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []annotation `json:"list"`
	} `json:"annotations"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type link struct {
	Title    string `json:"title"`
	URL      string `json:"url"`
	KeepTime bool   `json:"keepTime"`
}

type variable struct {
	Type       string `json:"type"`
	Name       string `json:"name"`
	Label      string `json:"label"`
	Query      string `json:"query"`
	Datasource source `json:"datasource"`
	Multi      bool   `json:"multi"`
	AllValue   string `json:"allValue"`
	Refresh    int    `json:"refresh"`
}

type annotation struct {
	Name        string `json:"name"`
	Datasource  source `json:"datasource"`
	Expr        string `json:"expr"`
	TitleFormat string `json:"titleFormat"`
	TextFormat  string `json:"textFormat"`
	Target      target `json:"target"`
}

type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Datasource  source   `json:"datasource"`
	Targets     []target `json:"targets"`
	FieldConfig struct {
		Overrides []override `json:"overrides"`
	} `json:"fieldConfig"`
}

type override struct {
	Properties []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	} `json:"properties"`
}

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
	Datasource   source `json:"datasource"`
	Instant      bool   `json:"instant"`
	Range        bool   `json:"range"`
}

// files are the dashboards as they are committed, by name.
var files = []string{"broker.json", "fleet.json"}

func read(t *testing.T, name string) board {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "dashboards", name))
	if err != nil {
		t.Fatal(err)
	}
	var b board
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// drawn are the panels that show data: all but the headings of rows.
func (b board) drawn() []*panel {
	var list []*panel
	for i := range b.Panels {
		if b.Panels[i].Type != "row" {
			list = append(list, &b.Panels[i])
		}
	}
	return list
}

// asked is one expression of a dashboard, and where it stands.
type asked struct {
	where   string
	expr    string
	legend  string // whatever has {{label}} in it
	instant bool
}

// queries are those of panels and of annotations.
func (b board) queries() []asked {
	var list []asked
	for _, p := range b.drawn() {
		for _, t := range p.Targets {
			list = append(list, asked{fmt.Sprintf("%s, query %s", p.Title, t.RefID), t.Expr, t.LegendFormat, t.Instant})
		}
	}
	for _, a := range b.Annotations.List {
		list = append(list, asked{"annotation " + a.Name, a.Expr, a.TitleFormat + a.TextFormat, false})
	}
	return list
}

var promQL = parser.NewParser(parser.Options{})

// choice is what a person chose, and what Grafana makes of the time shown.
type choice struct {
	cluster, job, instance string // regular expressions, as Grafana writes them
	rateInterval, span     string
}

// somewhere stands for any choice, where only the form of a query matters.
var somewhere = choice{".*", "j", "i", "1m1s", "6h1s"}

// put replaces the variables as Grafana does.
func (c choice) put(expr string) string {
	return strings.NewReplacer("$__rate_interval", c.rateInterval, "$__range", c.span, "$cluster", c.cluster,
		"$job", c.job, "$instance", c.instance).Replace(expr)
}

// selectors are those of an expression that can be parsed, each with the nodes around it.
func selectors(expr string, do func(s *parser.VectorSelector, around []parser.Node)) error {
	e, err := promQL.ParseExpr(expr)
	if err != nil {
		return err
	}
	parser.Inspect(e, func(n parser.Node, around []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			do(s, around)
		}
		return nil
	})
	return nil
}

// links are those of the cells of a table.
func (p *panel) links() []link {
	var list []link
	for _, o := range p.FieldConfig.Overrides {
		for _, pr := range o.Properties {
			var l []link
			if pr.ID == "links" && json.Unmarshal(pr.Value, &l) == nil {
				list = append(list, l...)
			}
		}
	}
	return list
}
