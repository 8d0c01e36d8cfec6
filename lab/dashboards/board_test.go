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
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			RefID        string `json:"refId"`
			Expr         string `json:"expr"`
			LegendFormat string `json:"legendFormat"`
			Instant      bool   `json:"instant"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query string `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name        string `json:"name"`
			Expr        string `json:"expr"`
			TitleFormat string `json:"titleFormat"`
			TextFormat  string `json:"textFormat"`
		} `json:"list"`
	} `json:"annotations"`
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
	for _, p := range b.Panels {
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
