package main

import (
	"cmp"
	"maps"
	"slices"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// about is what every panel has.
type about struct{ title, unit, description string }

// made finishes a panel. A builder fails only for values that its program never has.
func made(a about, queries []query, b cog.Builder[dashboard.Panel]) dashboard.Panel {
	p, err := b.Build()
	if err != nil {
		panic("panel " + a.title + ": " + err.Error())
	}
	p.Title, p.Description, p.Datasource = ptr(a.title), ptr(a.description), source()
	p.Targets = targets(queries)
	if p.FieldConfig == nil {
		p.FieldConfig = dashboard.NewFieldConfigSource()
	}
	p.FieldConfig.Defaults.Unit = ptr(a.unit)
	return p
}

// lines are series over time.
func lines(a about, queries ...query) dashboard.Panel {
	return made(a, queries, timeseries.NewPanelBuilder().
		DrawStyle(common.GraphDrawStyleLine).LineWidth(2).FillOpacity(0).ShowPoints(common.VisibilityModeNever).
		AxisSoftMin(0).Legend(legend()).Tooltip(tooltip()))
}

// steps are series that stay until they change, such as counts of brokers.
func steps(a about, queries ...query) dashboard.Panel {
	return made(a, queries, timeseries.NewPanelBuilder().
		DrawStyle(common.GraphDrawStyleLine).LineInterpolation(common.LineInterpolationStepAfter).
		LineWidth(2).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
		AxisSoftMin(0).Decimals(0).Legend(legend()).Tooltip(tooltip()))
}

// areas are steps upon one another: the parts of a whole.
func areas(a about, queries ...query) dashboard.Panel {
	return made(a, queries, timeseries.NewPanelBuilder().
		DrawStyle(common.GraphDrawStyleLine).LineInterpolation(common.LineInterpolationStepAfter).
		LineWidth(1).FillOpacity(60).ShowPoints(common.VisibilityModeNever).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A")).
		AxisSoftMin(0).Decimals(0).Legend(legend()).Tooltip(tooltip()))
}

// bars are counts of events, upon one another.
func bars(a about, queries ...query) dashboard.Panel {
	return made(a, queries, timeseries.NewPanelBuilder().
		DrawStyle(common.GraphDrawStyleBars).LineWidth(1).FillOpacity(80).ShowPoints(common.VisibilityModeNever).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A")).
		AxisSoftMin(0).Legend(legend()).Tooltip(tooltip()))
}

// timed is a query whose series have states of their own.
type timed struct {
	query
	states []state
}

// timeline shows states over time, a line for each series.
func timeline(title, description string, rows ...timed) dashboard.Panel {
	queries := make([]query, len(rows))
	for i, r := range rows {
		queries[i] = r.query
	}
	p := made(about{title, "none", description}, queries, statetimeline.NewPanelBuilder().
		ShowValue(common.VisibilityModeAuto).RowHeight(0.8).MergeValues(true).FillOpacity(85).LineWidth(0).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(false).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeSingle)))
	for i, r := range rows {
		mapped(&p, i, r.states)
	}
	return p
}

// mapped gives the series of one query their states.
func mapped(p *dashboard.Panel, query int, states []state) {
	override(p, query, property("mappings", mappings(states)))
}

// override changes the series of one query.
func override(p *dashboard.Panel, query int, properties ...dashboard.DynamicConfigValue) {
	p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, dashboard.DashboardFieldConfigSourceOverrides{
		Matcher: dashboard.MatcherConfig{Id: "byFrameRefID", Options: refID(query)}, Properties: properties,
	})
}

func property(id string, value any) dashboard.DynamicConfigValue {
	return dashboard.DynamicConfigValue{Id: id, Value: value}
}

// fixed is the colour of a series.
func fixed(colour string) dashboard.DynamicConfigValue {
	return property("color", map[string]string{"mode": "fixed", "fixedColor": colour})
}

// bound makes the series of one query a dashed line in that colour: a line to compare with.
func bound(p dashboard.Panel, query int, colour string) dashboard.Panel {
	override(&p, query, fixed(colour), property("custom.lineWidth", 1), property("custom.fillOpacity", 0),
		property("custom.lineStyle", map[string]any{"fill": "dash", "dash": []int{8, 6}}))
	return p
}

// coloured gives the series of each query a colour, in order.
func coloured(p dashboard.Panel, colours ...string) dashboard.Panel {
	for i, c := range colours {
		if c != "" {
			override(&p, i, fixed(c))
		}
	}
	return p
}

// ends gives series a colour by the last word of their name.
func ends(p dashboard.Panel, colours map[string]string) dashboard.Panel {
	for _, word := range slices.Sorted(maps.Keys(colours)) {
		p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, dashboard.DashboardFieldConfigSourceOverrides{
			Matcher:    dashboard.MatcherConfig{Id: "byRegexp", Options: "/ " + word + "$/"},
			Properties: []dashboard.DynamicConfigValue{fixed(colours[word])},
		})
	}
	return p
}

// results are the ends of calls to the broker.
var results = map[string]string{"ok": good, "error": bad, "timeout": watch, "dropped": blank, "refused": aside, "abandoned": blank}

// word is the present state of each broker as a word.
func word(title, description string, q query, states []state) dashboard.Panel {
	p := made(about{title, "none", description}, []query{q}, stat.NewPanelBuilder().
		ColorMode(common.BigValueColorModeBackgroundSolid).GraphMode(common.BigValueGraphModeNone).Orientation(common.VizOrientationAuto).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})))
	p.FieldConfig.Defaults.Mappings = mappings(states)
	return p
}

// limit is a value from which on a number has another colour.
type limit struct {
	from   float64
	colour string
}

// number is one number now; base is its colour below all limits.
func number(a about, q query, base string, limits ...limit) dashboard.Panel {
	return made(a, []query{q}, stat.NewPanelBuilder().
		ColorMode(common.BigValueColorModeValue).GraphMode(common.BigValueGraphModeNone).Orientation(common.VizOrientationAuto).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(thresholds(base, limits)).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)))
}

// ranking is the worst few of all brokers.
func ranking(a about, q query, base string, limits ...limit) dashboard.Panel {
	return made(a, []query{q}, bargauge.NewPanelBuilder().
		DisplayMode(common.BarGaugeDisplayModeBasic).Orientation(common.VizOrientationHorizontal).Min(0).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(thresholds(base, limits)).
		ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds)))
}

func thresholds(base string, limits []limit) cog.Builder[dashboard.ThresholdsConfig] {
	list := []dashboard.Threshold{{Value: nil, Color: base}}
	for _, l := range limits {
		list = append(list, dashboard.Threshold{Value: ptr(l.from), Color: l.colour})
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(list)
}

// column is one query of a table: a row for each set of labels, merged with those of
// the other columns.
type column struct {
	name, unit, expr string
	states           []state // nil: a number
	base             string  // colour below all limits; empty: none
	limits           []limit
	width            int
}

// rows is a table of the labels named and a column for each query.
func rows(title, description string, labels []string, columns ...column) dashboard.Panel {
	queries := make([]query, len(columns))
	legend := "{{" + labels[0] + "}}"
	if slices.Contains(labels, "instance") {
		legend = "{{instance}}"
	}
	index := map[string]int{}
	names := map[string]string{}
	for i, l := range labels {
		index[l] = i
	}
	for i, c := range columns {
		queries[i] = query{expr: c.expr, legend: legend, instant: true, table: true}
		value := "Value #" + refID(i)
		if len(columns) == 1 {
			value = "Value"
		}
		names[value] = c.name
		index[value] = len(labels) + i
	}
	p := made(about{title, "none", description}, queries, table.NewPanelBuilder().
		Filterable(true).CellHeight(common.TableCellHeightSm).
		Footer(common.NewTableFooterOptionsBuilder().Show(false).Reducer([]string{})))
	p.Transformations = []dashboard.DataTransformerConfig{
		{Id: "merge", Options: map[string]any{}},
		{Id: "organize", Options: map[string]any{
			"excludeByName": map[string]bool{"Time": true}, "indexByName": index, "renameByName": names,
		}},
	}
	for _, c := range columns {
		properties := []dashboard.DynamicConfigValue{property("unit", c.unit)}
		switch {
		case c.states != nil:
			properties = append(properties, property("mappings", mappings(unpainted(c.states))), painted)
		case c.limits != nil:
			config, err := thresholds(cmp.Or(c.base, "transparent"), c.limits).Build()
			if err != nil {
				panic("column " + c.name + ": " + err.Error())
			}
			properties = append(properties, property("thresholds", config), painted)
		}
		if c.width > 0 {
			properties = append(properties, property("custom.width", c.width))
		}
		byName(&p, c.name, properties...)
	}
	return p
}

// unpainted leaves what is as it should be without a colour: a table is read for the rest.
func unpainted(states []state) []state {
	list := slices.Clone(states)
	for i := range list {
		if list[i].colour == good {
			list[i].colour = "transparent"
		}
	}
	return list
}

// painted has Grafana choose an ink that can be read upon the colour of the cell.
var painted = property("custom.cellOptions", map[string]string{"type": "color-background", "mode": "basic"})

// byName changes one column.
func byName(p *dashboard.Panel, name string, properties ...dashboard.DynamicConfigValue) {
	p.FieldConfig.Overrides = append(p.FieldConfig.Overrides, dashboard.DashboardFieldConfigSourceOverrides{
		Matcher: dashboard.MatcherConfig{Id: "byName", Options: name}, Properties: properties,
	})
}

// sorted is the order of the rows, by columns, lowest first.
func sorted(p *dashboard.Panel, columns ...string) {
	var by []common.TableSortByFieldState
	for _, c := range columns {
		by = append(by, common.TableSortByFieldState{DisplayName: c, Desc: ptr(false)})
	}
	p.Options.(*table.Options).SortBy = by
}

func legend() cog.Builder[common.VizLegendOptions] {
	return common.NewVizLegendOptionsBuilder().ShowLegend(true).
		DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom)
}

func tooltip() cog.Builder[common.VizTooltipOptions] {
	return common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)
}
