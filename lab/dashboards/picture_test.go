package dashboards

import (
	"context"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var pictures = flag.String("pictures", "", "draw the dashboards into this directory, from a longer run of the stand; needs chromium")

// unhurried shows in two minutes what an operator sees in an hour.
var unhurried = pace{ttl: 16 * time.Second, others: 16 * time.Second, scrape: time.Second, window: 4, calm: 8}

// The pictures are what a person would see, as far as a few hundred lines can draw what
// Grafana does: the values, states, words and colours are those of the dashboards' own
// queries and mappings; the layout is the grid's. They are not asserted on.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("only with -pictures DIR")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	s := standing(t, unhurried)
	for _, picture := range []struct {
		file, name string
		choice     choice
		rows       int // of the dashboard's headings
	}{
		{"broker.json", "dashboard-broker.png", s.chosen("shop", labelled, s.lost), 3},
		{"fleet.json", "dashboard-fleet.png", s.chosen("shop", labelled), 4},
	} {
		page, height := s.page(t, read(t, picture.file), picture.choice, picture.rows)
		if err := shoot(t.Context(), chromium, page, height, filepath.Join(*pictures, picture.name)); err != nil {
			t.Fatal(err)
		}
	}
}

// shoot makes a picture of a page.
func shoot(ctx context.Context, chromium, page string, height int, to string) error {
	dir, err := os.MkdirTemp("", "hf-picture-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "page.html")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return err
	}
	if to, err = filepath.Abs(to); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
		"--user-data-dir="+filepath.Join(dir, "profile"), fmt.Sprintf("--window-size=%d,%d", pageWidth, height),
		"--screenshot="+to, "file://"+file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("shoot %s: %w: %s", to, err, out)
	}
	return nil
}

// Sizes in pixels, near those of Grafana.
const (
	pageWidth = 1480
	gridRow   = 38
	gap       = 8
	top       = 72
)

const style = `<style>
body{margin:0;background:#111217;color:#ccccdc;font:13px/1.4 Inter,"DejaVu Sans",Arial,sans-serif;position:relative}
h1{font-size:17px;font-weight:500;margin:14px 12px 6px} .vars{margin:0 12px;font-size:12px} .vars b{font-weight:400;background:#181b1f;border:1px solid #2c2f36;padding:3px 8px;margin:0 10px 0 0}
.row{position:absolute;font-weight:600;padding:8px 4px;box-sizing:border-box}
.panel{position:absolute;box-sizing:border-box;background:#181b1f;border:1px solid #24272e;border-radius:2px;overflow:hidden}
.panel>h2{font-size:13px;font-weight:500;margin:6px 9px 2px}
.big{position:absolute;inset:28px 0 0 0;display:flex;align-items:center;justify-content:center;font-size:30px;font-weight:500}
.big.solid{inset:0;padding-top:16px}
.legend{position:absolute;left:10px;right:6px;bottom:4px;font-size:11px;line-height:16px;max-height:34px;overflow:hidden}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin:0 5px 2px 0}.legend span{margin-right:12px;white-space:nowrap;display:inline-block}
table{border-collapse:collapse;width:100%;font-size:12px}td,th{text-align:left;padding:5px 9px;border-bottom:1px solid #24272e;white-space:nowrap}th{font-weight:500;color:#6e9fff}
svg text{font:11px Inter,"DejaVu Sans",Arial,sans-serif;fill:#9fa1ad} .foot{position:absolute;left:12px;font-size:12px;color:#9fa1ad}
</style>`

// page draws a dashboard down to a number of its rows.
func (s *stand) page(t *testing.T, b board, c choice, rows int) (text string, height int) {
	var out strings.Builder
	fmt.Fprintf(&out, `<!doctype html><meta charset="utf-8">%s<h1>%s</h1><div class="vars">`, style, html.EscapeString(b.Title))
	for _, v := range [][2]string{{"Data source", "prometheus"}, {"Cluster", c.cluster}, {"Job", c.job}, {"Instance", plainly(c.instance)}} {
		fmt.Fprintf(&out, `%s <b>%s</b>`, v[0], html.EscapeString(v[1]))
	}
	fmt.Fprint(&out, `</div>`)
	seen, bottom := 0, 0
	for i := range b.Panels {
		p := &b.Panels[i]
		if p.Type == "row" {
			if seen++; seen > rows {
				break
			}
		}
		unit := float64(pageWidth-2*gap) / 24
		x, y := gap+float64(p.Grid.X)*unit, top+p.Grid.Y*gridRow
		w, h := int(float64(p.Grid.W)*unit)-gap, p.Grid.H*gridRow-gap
		bottom = max(bottom, y+h)
		class, inner := "panel", ""
		if p.Type == "row" {
			class, inner = "row", "▾ "+html.EscapeString(p.Title)
		} else {
			inner = s.panel(t, p, c, w, h)
		}
		fmt.Fprintf(&out, `<div class="%s" style="left:%.0fpx;top:%dpx;width:%dpx;height:%dpx">%s</div>`, class, x, y, w, h, inner)
	}
	fmt.Fprintf(&out, `<div class="foot" style="top:%dpx">Drawn by the tests of Holdfast from the answers to this dashboard's queries over a real scrape of three sidecars (TTL %v); not by Grafana.</div>`, bottom+12, s.ttl)
	return out.String(), bottom + 44
}

func plainly(instance string) string {
	if instance == ".+" {
		return "All"
	}
	return strings.NewReplacer(`\\`, "", "(", "", ")", "").Replace(instance)
}

// answer is one series of a panel.
type answer struct {
	ref, name string
	labels    map[string]string
	points    []point
}

type point struct {
	at time.Time
	v  float64
}

func (a answer) last() (float64, bool) {
	if len(a.points) == 0 {
		return 0, false
	}
	return a.points[len(a.points)-1].v, true
}

// answers are the series of all queries of a panel, in order.
func (s *stand) answers(t *testing.T, p *panel, c choice) (list []answer) {
	for _, q := range p.Targets {
		m := s.ask(t, c, q.Expr)
		for _, series := range m {
			a := answer{ref: q.RefID, labels: series.Metric.Map()}
			a.name = words.ReplaceAllStringFunc(q.LegendFormat, func(w string) string {
				return a.labels[strings.Trim(w, "{}")]
			})
			for _, f := range series.Floats {
				a.points = append(a.points, point{time.UnixMilli(f.T), f.F})
			}
			if q.Instant { // only what is there at the end
				if n := len(a.points); n == 0 || s.end.Sub(a.points[n-1].at) > 2*s.scrape {
					continue
				}
			}
			list = append(list, a)
		}
	}
	return list
}

// panel draws the inside of one panel.
func (s *stand) panel(t *testing.T, p *panel, c choice, w, h int) string {
	list := s.answers(t, p, c)
	title := "<h2>" + html.EscapeString(p.Title) + "</h2>"
	switch p.Type {
	case "stat":
		return drawStat(p, list, title)
	case "table":
		return title + drawTable(p, list)
	case "bargauge":
		return title + drawRanking(p, list, w, h)
	case "state-timeline":
		return title + s.drawStates(p, list, w, h)
	default:
		return title + s.drawLines(p, list, w, h)
	}
}

const textColour = "#ccccdc"

// hues is what Grafana draws for the names in its dark theme.
var hues = map[string]string{"blue": "#5794F2", "orange": "#FF9830", "semi-dark-red": "#E02F44", "super-light-purple": "#DEB6F2", "text": textColour}

// hue is the colour of a name.
func hue(name string) string {
	if h, ok := hues[name]; ok {
		return h
	}
	return name
}

// classic is Grafana's palette for series without a colour of their own.
var classic = []string{"#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0", "#508642", "#CCA300"}

// state is the word and the colour of a value; false: it has none.
func state(mappings []mapping, v float64) (word, colour string, ok bool) {
	for _, m := range mappings {
		if s, found := m.Options[fmt.Sprintf("%g", v)]; found {
			return s.Text, hue(s.Color), true
		}
	}
	return "", "", false
}

// threshold is the colour of the highest step that v reaches.
func (f field) threshold(v float64) string {
	colour := textColour
	for _, step := range f.Thresholds.Steps {
		if step.Value == nil || v >= *step.Value {
			colour = hue(step.Color)
		}
	}
	return colour
}

// shown is a value in its unit.
func shown(unit string, v float64) string {
	switch {
	case unit == "percentunit":
		return fmt.Sprintf("%.0f %%", 100*v)
	case unit == "s" && v != 0 && v < 1 && v > -1:
		return fmt.Sprintf("%.3g ms", 1000*v)
	case unit == "s":
		return fmt.Sprintf("%.1f s", v)
	case unit == "ops":
		return fmt.Sprintf("%.3g ops/s", v)
	case v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// sortedKeys are the columns in their order.
func sortedKeys(index map[string]int) []string {
	var keys []string
	for k := range index {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return index[a] - index[b] })
	return keys
}
