package dashboards

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

func drawStat(p *panel, list []answer, title string) string {
	if len(list) == 0 {
		return title + `<div class="big">No data</div>`
	}
	var out strings.Builder
	on := ""
	for i, a := range list {
		v, _ := a.last()
		x := fmt.Sprintf("left:%d%%;width:%d%%;", 100*i/len(list), 100/len(list))
		word, colour, ok := state(p.FieldConfig.Defaults.Mappings, v)
		if ok && p.FieldConfig.Defaults.Unit == "none" {
			if i == 0 {
				on = ";color:" + ink(colour)
			}
			fmt.Fprintf(&out, `<div class="big solid" style="%sbackground:%s;color:%s;font-size:%dpx">%s</div>`, x, colour, ink(colour), 28-4*len(list), html.EscapeString(word))
			continue
		}
		if !ok {
			word, colour = shown(p.FieldConfig.Defaults.Unit, v), p.FieldConfig.Defaults.threshold(v)
		}
		fmt.Fprintf(&out, `<div class="big" style="%scolor:%s">%s</div>`, x, colour, html.EscapeString(word))
	}
	return out.String() + strings.Replace(title, "<h2>", `<h2 style="position:relative`+on+`">`, 1)
}

// drawTable merges the answers of all queries by the labels that the table shows.
func drawTable(p *panel, list []answer) string {
	var index map[string]int
	var rename map[string]string
	for _, tr := range p.Transformations {
		if tr.ID == "organize" {
			index, rename = tr.Options.IndexByName, tr.Options.RenameByName
		}
	}
	columns := sortedKeys(index)
	rows := map[string]map[string]string{}
	values := map[string]map[string]float64{}
	for _, a := range list {
		key := fmt.Sprint(a.labels["cluster"], a.labels["instance"])
		if len(p.Targets) == 1 {
			key = fmt.Sprint(a.labels)
		}
		if rows[key] == nil {
			rows[key], values[key] = map[string]string{}, map[string]float64{}
		}
		for k, v := range a.labels {
			rows[key][k] = v
		}
		column := "Value #" + a.ref
		if len(p.Targets) == 1 {
			column = "Value"
		}
		values[key][column], _ = a.last()
	}
	keys := make([]string, 0, len(rows))
	for k := range rows {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if d := values[a]["Value #A"] - values[b]["Value #A"]; d != 0 {
			return int(math.Copysign(1, d))
		}
		return strings.Compare(a, b)
	})
	var out strings.Builder
	out.WriteString("<table><tr>")
	for _, c := range columns {
		name := c
		if rename[c] != "" {
			name = rename[c]
		}
		fmt.Fprintf(&out, "<th>%s</th>", html.EscapeString(name))
	}
	out.WriteString("</tr>")
	for _, k := range keys {
		out.WriteString("<tr>")
		for _, c := range columns {
			v, isValue := values[k][c]
			if !isValue {
				colour := "inherit"
				if c == "instance" && len(p.links()) > 0 {
					colour = "#6e9fff"
				}
				fmt.Fprintf(&out, `<td style="color:%s">%s</td>`, colour, html.EscapeString(rows[k][c]))
				continue
			}
			cell := p.column(rename[c])
			text, colour, ok := state(cell.Mappings, v)
			if !ok {
				text, colour = shown(cell.Unit, v), "transparent"
				if len(cell.Thresholds.Steps) > 0 {
					colour = cell.threshold(v)
				}
			}
			fmt.Fprintf(&out, `<td style="background:%s;color:%s">%s</td>`, colour, ink(colour), html.EscapeString(text))
		}
		out.WriteString("</tr>")
	}
	return out.String() + "</table>"
}

// ink can be read upon a colour.
func ink(colour string) string {
	switch colour {
	case hues["super-light-purple"], hues["orange"]:
		return "#111217"
	case "transparent", textColour:
		return textColour
	}
	return "#fff"
}

// ending is the colour of a series by the last word of its name; nil: it has none.
func (p *panel) ending(name string) json.RawMessage {
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.ID == "byRegexp" && strings.HasSuffix(name, strings.Trim(o.Matcher.Options, "/$")) {
			return o.Properties[0].Value
		}
	}
	return nil
}

// column is how the cells of one column look.
func (p *panel) column(name string) (f field) {
	f.Unit = "none"
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.ID != "byName" || o.Matcher.Options != name {
			continue
		}
		for _, pr := range o.Properties {
			switch pr.ID {
			case "unit":
				_ = json.Unmarshal(pr.Value, &f.Unit)
			case "mappings":
				_ = json.Unmarshal(pr.Value, &f.Mappings)
			case "thresholds":
				_ = json.Unmarshal(pr.Value, &f.Thresholds)
			}
		}
	}
	return f
}

func drawRanking(p *panel, list []answer, w, h int) string {
	most := 0.0
	for _, a := range list {
		v, _ := a.last()
		most = max(most, v)
	}
	slices.SortFunc(list, func(a, b answer) int { // as topk answers: the worst first
		x, _ := a.last()
		y, _ := b.last()
		return int(math.Copysign(1, y-x))
	})
	var out strings.Builder
	fmt.Fprintf(&out, `<svg width="%d" height="%d">`, w, h-28)
	for i, a := range list {
		v, _ := a.last()
		y, long := 8+i*36, 0.0
		if most > 0 {
			long = max(0, v) / most * float64(w-180)
		}
		colour := p.FieldConfig.Defaults.threshold(v)
		fmt.Fprintf(&out, `<text x="10" y="%d">%s</text><rect x="80" y="%d" width="%.0f" height="22" fill="%s" opacity=".85"/><text x="%.0f" y="%d" style="fill:%s;font-size:14px">%s</text>`,
			y+16, html.EscapeString(a.name), y, max(long, 2), colour, 90+long, y+16, colour, shown(p.FieldConfig.Defaults.Unit, v))
	}
	return out.String() + "</svg>"
}

// x is the place of a moment on an axis from left to left+width.
func (s *stand) x(at time.Time, left, width float64) float64 {
	return left + width*float64(at.Sub(s.start))/float64(s.span())
}

// clock draws the time axis.
func (s *stand) clock(out *strings.Builder, left, width float64, y int) {
	every := (s.span() / time.Duration(max(2, int(width/90)))).Round(5 * time.Second)
	for at := s.start.Truncate(every).Add(every); at.Before(s.end); at = at.Add(every) {
		fmt.Fprintf(out, `<text x="%.0f" y="%d" text-anchor="middle">%s</text>`, s.x(at, left, width), y, at.UTC().Format("15:04:05"))
	}
}

func (s *stand) drawStates(p *panel, list []answer, w, h int) string {
	const left = 190.0
	width := float64(w) - left - 12
	high := float64(h-28-22) / float64(max(1, len(list)))
	var out strings.Builder
	fmt.Fprintf(&out, `<svg width="%d" height="%d">`, w, h-26)
	for i, a := range list {
		y := 2 + float64(i)*high
		fmt.Fprintf(&out, `<text x="%.0f" y="%.0f" text-anchor="end">%s</text>`, left-8, y+high/2+4, html.EscapeString(a.name))
		for j := 0; j < len(a.points); {
			k := j
			for k < len(a.points) && a.points[k].v == a.points[j].v {
				k++
			}
			until := s.end
			if k < len(a.points) {
				until = a.points[k].at
			}
			x := s.x(a.points[j].at, left, width)
			wide := s.x(until, left, width) - x
			word, colour, _ := state(p.mappings(a.ref), a.points[j].v)
			fmt.Fprintf(&out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" opacity=".9"/>`, x, y+high*.1, max(wide-1, 1), high*.8, colour)
			if wide > 7*float64(len(word)) {
				fmt.Fprintf(&out, `<text x="%.1f" y="%.1f" style="fill:%s">%s</text>`, x+5, y+high/2+4, ink(colour), html.EscapeString(word))
			}
			j = k
		}
	}
	s.clock(&out, left, width, h-32)
	return out.String() + "</svg>"
}

func (s *stand) drawLines(p *panel, list []answer, w, h int) string {
	const left = 58.0
	width, high := float64(w)-left-14, float64(h-28-62)
	custom := p.FieldConfig.Defaults.Custom
	stacked := custom.Stacking.Mode == "normal"
	low, most := 0.0, 0.0
	base := map[int64]float64{} // of a stack, by moment
	type drawn struct {
		answer
		colour string
		dashed bool
		from   []float64
	}
	var all []drawn
	for i, a := range list {
		d := drawn{answer: a, colour: classic[i%len(classic)]}
		var fixed struct{ FixedColor string }
		if raw := p.ending(a.name); raw != nil && json.Unmarshal(raw, &fixed) == nil {
			d.colour = hue(fixed.FixedColor)
		}
		if raw := p.property(a.ref, "color"); raw != nil && json.Unmarshal(raw, &fixed) == nil {
			d.colour = hue(fixed.FixedColor)
		}
		d.dashed = p.property(a.ref, "custom.lineStyle") != nil
		for _, pt := range a.points {
			from := 0.0
			if stacked && !math.IsNaN(pt.v) {
				from = base[pt.at.UnixMilli()]
				base[pt.at.UnixMilli()] += pt.v
			}
			d.from = append(d.from, from)
			if !math.IsNaN(pt.v) && !math.IsInf(pt.v, 0) {
				low, most = min(low, pt.v), max(most, pt.v+from)
			}
		}
		all = append(all, d)
	}
	step := nice((most - low) / 4)
	most, low = math.Ceil(most/step)*step, math.Floor(low/step)*step
	if most == low {
		most = low + 1
	}
	y := func(v float64) float64 { return 6 + high*(1-(v-low)/(most-low)) }
	var out strings.Builder
	fmt.Fprintf(&out, `<svg width="%d" height="%d">`, w, h-28-36)
	for v := low; v <= most+step/2; v += step {
		fmt.Fprintf(&out, `<path d="M%.0f %.1fH%.0f" stroke="#2c2f36"/><text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, left, y(v), left+width, left-6, y(v)+4, shown(p.FieldConfig.Defaults.Unit, math.Round(v*1e6)/1e6))
	}
	s.clock(&out, left, width, int(high)+24)
	var names strings.Builder
	for _, d := range all {
		if custom.DrawStyle == "bars" {
			wide := max(2, width*float64(s.scrape)/float64(s.span())*.8)
			for i, pt := range d.points {
				if pt.v > 0 {
					fmt.Fprintf(&out, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, s.x(pt.at, left, width)-wide, y(d.from[i]+pt.v), wide, y(d.from[i])-y(d.from[i]+pt.v), d.colour)
				}
			}
		} else {
			out.WriteString(s.curve(d.answer, d.from, d.colour, d.dashed, p.fill(d.ref), custom.LineInterpolation == "stepAfter", left, width, y))
		}
		fmt.Fprintf(&names, `<span><i style="background:%s"></i>%s</span>`, d.colour, html.EscapeString(d.name))
	}
	return out.String() + `</svg><div class="legend">` + names.String() + `</div>`
}

// fill is the opacity, from 0 to 1, of the area below a series.
func (p *panel) fill(ref string) float64 {
	f := p.FieldConfig.Defaults.Custom.FillOpacity
	if raw := p.property(ref, "custom.fillOpacity"); raw != nil {
		_ = json.Unmarshal(raw, &f)
	}
	return f / 100
}

// curve is one line, with gaps where there is no number.
func (s *stand) curve(a answer, from []float64, colour string, dashed bool, fill float64, steps bool, left, width float64, y func(float64) float64) string {
	var path, area strings.Builder
	var back []string
	pen := false
	flush := func() {
		if pen {
			slices.Reverse(back)
			area.WriteString(strings.Join(back, "") + "Z")
		}
		pen, back = false, nil
	}
	for i, pt := range a.points {
		if math.IsNaN(pt.v) || math.IsInf(pt.v, 0) {
			flush()
			continue
		}
		x, at := s.x(pt.at, left, width), y(pt.v+from[i])
		switch {
		case !pen:
			fmt.Fprintf(&path, "M%.1f %.1f", x, at)
			fmt.Fprintf(&area, "M%.1f %.1f", x, at)
		case steps:
			fmt.Fprintf(&path, "H%.1fV%.1f", x, at)
			fmt.Fprintf(&area, "H%.1fV%.1f", x, at)
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", x, at)
			fmt.Fprintf(&area, "L%.1f %.1f", x, at)
		}
		back = append(back, fmt.Sprintf("L%.1f %.1f", x, y(from[i])))
		pen = true
	}
	flush()
	dash := ""
	if dashed {
		dash = ` stroke-dasharray="8 6"`
	}
	return fmt.Sprintf(`<path d="%s" fill="%s" opacity="%.2f"/><path d="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, area.String(), colour, fill, path.String(), colour, dash)
}

// nice is the next of 1, 2, 5, 10 and so on.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*base {
			return f * base
		}
	}
	return 10 * base
}
