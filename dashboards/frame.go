package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// Uids are what links and provisioning hold on to: they never change.
const (
	brokerUID = "holdfast-broker"
	fleetUID  = "holdfast-fleet"
)

// kept are the choices that a link takes along. The instance is not one: on the way to
// the fleet it would hide the others.
const kept = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}"

// toBroker is the link from a row of a table with the columns job and instance to the
// dashboard of that broker. The cluster is the one chosen: targets need not have one.
const toBroker = "/d/" + brokerUID + "?${datasource:queryparam}&${cluster:queryparam}" +
	"&var-job=${__data.fields.job:percentencode}&var-instance=${__data.fields.instance:percentencode}&${__url_time_range}"

// board is a dashboard in the making. Panels go from left to right and then below.
type board struct {
	document
	x, y, rowHeight uint32
	lastID          uint32
}

func newBoard(uid, title, description, since string) *board {
	d := dashboard.NewDashboard()
	d.Uid, d.Title, d.Description = ptr(uid), ptr(title), ptr(description)
	d.Editable = ptr(false)
	d.Tags = []string{"holdfast"}
	d.GraphTooltip = ptr(dashboard.DashboardCursorSyncCrosshair)
	d.Refresh = ptr("30s")
	d.Time = &dashboard.DashboardDashboardTime{From: since, To: "now"}
	d.Timepicker = dashboard.NewTimePickerConfig()
	d.Templating.List = variables(uid == fleetUID)
	d.Annotations.List = annotations()
	return &board{document: *d}
}

// row begins a row of panels with a heading.
func (b *board) row(title string) {
	b.y, b.x, b.rowHeight = b.y+b.rowHeight, 0, 0
	b.lastID++
	b.Panels = append(b.Panels, dashboard.PanelOrRowPanel{RowPanel: &dashboard.RowPanel{
		Type: "row", Title: ptr(title), Id: b.lastID, Panels: []dashboard.Panel{},
		GridPos: &dashboard.GridPos{X: 0, Y: b.y, W: 24, H: 1},
	}})
	b.y++
}

// put places a panel; the dashboard is 24 wide.
func (b *board) put(w, h uint32, p dashboard.Panel) {
	if b.x+w > 24 {
		b.y, b.x, b.rowHeight = b.y+b.rowHeight, 0, 0
	}
	b.lastID++
	p.Id = ptr(b.lastID)
	p.GridPos = &dashboard.GridPos{X: b.x, Y: b.y, W: w, H: h}
	b.Panels = append(b.Panels, dashboard.PanelOrRowPanel{Panel: &p})
	b.x += w
	b.rowHeight = max(b.rowHeight, h)
}

// link adds a link at the top that keeps the time and the choices.
func (b *board) link(title, tooltip, uid string) {
	b.Links = append(b.Links, dashboard.DashboardLink{
		Title: title, Tooltip: tooltip, Type: dashboard.DashboardLinkTypeLink, Icon: "dashboard",
		Url: ptr("/d/" + uid + "?" + kept), KeepTime: true, Tags: []string{},
	})
}

// variables choose what is shown. The fleet begins with all instances, a broker's
// dashboard with one; several can be chosen there, too: the address of a pod changes
// with each restart.
func variables(fleet bool) []dashboard.VariableModel {
	choice := func(name, label, description, query, all string, includeAll bool) dashboard.VariableModel {
		v := dashboard.VariableModel{
			Type: dashboard.VariableTypeQuery, Name: name, Label: ptr(label), Description: ptr(description),
			Query: &dashboard.StringOrMap{String: ptr(query)}, Definition: ptr(query), Datasource: source(),
			Refresh: ptr(dashboard.VariableRefreshOnTimeRangeChanged), Sort: ptr(dashboard.VariableSortNaturalAsc),
			Multi: ptr(true), IncludeAll: ptr(includeAll), AllValue: ptr(all),
		}
		if includeAll {
			v.Current = &dashboard.VariableOption{Selected: ptr(true),
				Text:  dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
				Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}}}
		}
		return v
	}
	return []dashboard.VariableModel{
		{
			Type: dashboard.VariableTypeDatasource, Name: "datasource", Label: ptr("Data source"),
			Description: ptr("The Prometheus that scrapes the sidecars."),
			Query:       &dashboard.StringOrMap{String: ptr("prometheus")},
			Multi:       ptr(false), IncludeAll: ptr(false),
		},
		// All takes in targets without the label.
		choice("cluster", "Cluster", "The label that your scrape configuration gives to the targets of one cluster; All if it gives none.",
			"label_values(holdfast_build_info, cluster)", ".*", true),
		choice("job", "Job", "The scrape job of the sidecars.",
			`label_values(holdfast_build_info{cluster=~"$cluster"}, job)`, ".+", true),
		choice("instance", "Instance", "The web listener of a sidecar: one for each broker.",
			`label_values(holdfast_build_info{cluster=~"$cluster", job=~"$job"}, instance)`, ".+", fleet),
	}
}

// annotations mark the moments at which something changed.
func annotations() []dashboard.AnnotationQuery {
	mark := func(name, colour, expr, title, text string) dashboard.AnnotationQuery {
		return dashboard.AnnotationQuery{
			Name: name, Datasource: source(), Enable: true, IconColor: colour,
			Expr: ptr(expr), TitleFormat: ptr(title), TextFormat: ptr(text), TagKeys: ptr("instance"), Step: ptr("10s"),
			Target: prometheus.Dataquery{RefId: ptr("Anno"), Expr: expr, Interval: ptr("10s"), Datasource: source()},
		}
	}
	return []dashboard.AnnotationQuery{
		mark("Detachments", bad, grown("holdfast_detachments_total", "reason")+" > 0",
			"detached: {{reason}}", "{{instance}} was detached from its cluster ({{reason}}); holdfast explain says why."),
		mark("Registrations", watch, "changes("+on("holdfast_registration_epoch")+"[$__rate_interval]) > 0",
			"registration changed", "The registration of {{instance}} was made anew or given up: its epoch changed."),
		mark("Boots", aside, grown("holdfast_broker_boots_total", "kind", "reason")+" > 0",
			"broker started: {{kind}}, {{reason}}", "The broker beside {{instance}} was started ({{kind}}); its mode is due to {{reason}}."),
	}
}
