package main

import "fmt"

// fleet is the dashboard of all brokers: is it one of them, or all at once, and which
// to look at first.
func fleet() document {
	b := newBoard(fleetUID, "Holdfast / Fleet",
		"Every broker of the chosen clusters: how many may serve, which is worst off, and whether many failed at once.", "now-3h")
	b.link("Broker", "One broker, in the same time; or choose one in the table", brokerUID)
	counts(b)
	brokers(b)
	together(b)
	worst(b)
	running(b)
	return b.document
}

// total is a count of the whole fleet now.
func total(expr string) query { return query{expr: expr, legend: "brokers", instant: true} }

// all is a sum over the chosen brokers; series of 0 and 1 make it a count that is there
// even if it is zero.
func all(metric string, matchers ...string) string { return "sum(" + on(metric, matchers...) + ")" }

func counts(b *board) {
	b.row("Now")
	count := func(title, description, expr, base string, limits ...limit) {
		b.put(3, 4, number(about{title, "none", description}, total(expr), base, limits...))
	}
	count("Brokers", "Sidecars that are scraped: one for each broker.", "count("+on("holdfast_build_info")+")", "text")
	count("Ready", "Brokers that clients may be sent to.", all("holdfast_ready"), good)
	count("Not ready", "Brokers that clients are kept away from, whatever the cause.", "count("+on("holdfast_ready")+") - "+all("holdfast_ready"), good, limit{1, watch})
	count("Renewals failing", "Brokers whose renewals fail and whose lease still holds: the next to be fenced.", all("holdfast_attachment", `state="degraded"`), good, limit{1, watch})
	count("Detached", "Brokers whose fence point has passed or whose lease is gone.", all("holdfast_detached"), good, limit{1, bad})
	count("Drained", "Brokers that serve nothing until an operator activates them, taken out on purpose or after a loss.", all("holdfast_broker_mode", `mode="drained"`), good, limit{1, aside})
	count("Zombies", "Brokers with at least one sign of a zombie.", "sum(max by (cluster, job, instance) ("+on("holdfast_broker_zombie")+"))", good, limit{1, bad})
	count("Not scraped", "Targets that did not answer the last scrape. They may serve well; nobody knows.", "sum(1 - "+on("up")+")", good, limit{1, bad})
}

func brokers(b *board) {
	b.row("Brokers")
	t := rows("All brokers", "A line for each broker; the instance is the link to its dashboard. Not ready comes first, then those with the least time to the fence.",
		[]string{"cluster", "instance", "job"},
		column{name: "clients", unit: "none", expr: maximum("holdfast_ready"), states: ready},
		column{name: "attachment", unit: "none", expr: attachment.expr(), states: attachment.states},
		column{name: "mode", unit: "none", expr: mode.expr(), states: mode.states},
		column{name: "drained because", unit: "none", expr: drained.expr(), states: drained.states},
		column{name: "to the fence", unit: "s", expr: toFence, base: bad, limits: []limit{{0, watch}, {2, "transparent"}}},
		column{name: "failed in a row", unit: "none", expr: maximum("holdfast_lease_keepalive_failure_streak"), limits: []limit{{1, watch}}},
		column{name: "missing", unit: "none", expr: maxOf("holdfast_topics", `state="missing"`), limits: []limit{{1, watch}}},
		column{name: "orphans", unit: "none", expr: maxOf("holdfast_topics", `state="orphan"`), limits: []limit{{1, bad}}},
		column{name: "served", unit: "none", expr: maxOf("holdfast_topics", `state="served"`)},
		column{name: "detachments", unit: "none", expr: "round(" + grownSince("holdfast_detachments_total") + ")", limits: []limit{{1, watch}}},
		column{name: "registrations lost", unit: "none", expr: "round(" + grownSince("holdfast_registration_lost_total") + ")", limits: []limit{{1, bad}}},
		column{name: "recovery", unit: "none", expr: maximum("holdfast_paused"), states: paused},
	)
	byName(&t, "instance", property("links", []map[string]any{{"title": "Dashboard of ${__data.fields.instance}", "url": toBroker}}), property("custom.width", 200))
	sorted(&t, "clients", "to the fence")
	b.put(24, 8, t)
}

func together(b *board) {
	b.row("Many at once")
	b.put(8, 8, coloured(areas(about{"Brokers by attachment", "none", "Every broker, by attachment. Many degraded or detached in one moment is etcd or the network, not the brokers: look there first."},
		query{expr: all("holdfast_attachment", `state="attached"`), legend: "attached"},
		query{expr: all("holdfast_attachment", `state="degraded"`), legend: "degraded"},
		query{expr: all("holdfast_attachment", `state="detached"`), legend: "detached"}), good, watch, bad))
	b.put(8, 8, coloured(areas(about{"Brokers by mode", "none", "Every broker, by mode. Drained ones that nobody drained wait for an operator."},
		query{expr: all("holdfast_broker_mode", `mode="active"`), legend: "active"},
		query{expr: all("holdfast_broker_mode", `mode="draining"`), legend: "draining"},
		query{expr: all("holdfast_broker_mode", `mode="drained"`), legend: "drained"}), good, watch, aside))
	b.put(8, 8, coloured(lines(about{"Share of brokers in trouble", "percentunit", "How much of the fleet is failing to renew, and how much is not ready. Near all of it, activating single brokers does not help."},
		query{expr: "sum(" + on("holdfast_lease_keepalive_failure_streak") + " > bool 0) / count(" + on("holdfast_lease_keepalive_failure_streak") + ")", legend: "renewals failing"},
		query{expr: "1 - avg(" + on("holdfast_ready") + ")", legend: "not ready"}), watch, bad))
	b.put(8, 8, bars(about{"Registrations lost", "none", "By cause, over the fleet. Several in one bar: suspect etcd."},
		query{expr: "sum by (cause) (increase(" + on("holdfast_registration_lost_total") + "[$__rate_interval]))", legend: "{{cause}}"}))
	b.put(8, 8, bars(about{"Detachments by reason", "none", "Over the fleet. Each one kept clients away from a broker."},
		query{expr: "sum by (reason) (increase(" + on("holdfast_detachments_total") + "[$__rate_interval]))", legend: "{{reason}}"}))
	b.put(8, 8, steps(about{"Sidecars that miss an etcd endpoint", "none", "How many sidecars had a request to each endpoint fail in the last five minutes. A sidecar asks one endpoint at a time, so a member that is ill is missed by those that used it."},
		query{expr: "sum by (endpoint) (1 - " + on("holdfast_etcd_endpoint_up") + ")", legend: "{{endpoint}}"}))
}

func worst(b *board) {
	b.row("Worst renewals")
	b.put(8, 8, ranking(about{"Slowest renewals", "s", "The ten brokers with the slowest p99 of renewals. Slow everywhere is etcd's disk; slow in one place is the network."},
		query{expr: "topk(10, " + quantile(0.99, "holdfast_lease_renewal_duration_seconds") + ")", legend: "{{instance}}", instant: true}, good, limit{0.5, watch}, limit{2, bad}))
	b.put(8, 8, ranking(about{"Least time to the fence", "s", "The ten brokers that are nearest to being fenced, now. Those without a lease have none left."},
		query{expr: "bottomk(10, " + toFence + ")", legend: "{{instance}}", instant: true}, bad, limit{0, watch}, limit{2, good}))
	b.put(8, 8, ranking(about{"Failing: used up until the fence", "percentunit", "The ten brokers whose renewals have failed for longest, as a share of the time after which they are fenced. Zero is health."},
		query{expr: "topk(10, clamp_min(" + maximum("holdfast_lease_failing_seconds") + " / (" + maximum("holdfast_lease_ttl_seconds") + " - " +
			maximum("holdfast_lease_detach_margin_seconds") + "), 0))", legend: "{{instance}}", instant: true}, good, limit{0.01, watch}, limit{0.5, bad}))
	b.put(12, 8, lines(about{"Duration of renewals, fleet", "s", "Quantiles over all brokers. The same step in each is etcd's."},
		query{expr: overall(0.99, "holdfast_lease_renewal_duration_seconds"), legend: "p99"},
		query{expr: overall(0.9, "holdfast_lease_renewal_duration_seconds"), legend: "p90"},
		query{expr: overall(0.5, "holdfast_lease_renewal_duration_seconds"), legend: "median"}))
	b.put(12, 8, bars(about{"Failed renewals by class", "ops", "Over the fleet. The class says whom to call: the network, whoever runs etcd, or whoever rotates its passwords."},
		query{expr: "sum by (class) (rate(" + on("holdfast_lease_keepalive_failures_total") + "[$__rate_interval]))", legend: "{{class}}"}))
}

func running(b *board) {
	b.row("Topics and versions")
	state := func(s string) query {
		return query{expr: all("holdfast_topics", fmt.Sprintf("state=%q", s)), legend: s}
	}
	b.put(8, 8, coloured(steps(about{"Topics", "none", "Over the fleet: what etcd assigns, and what is served of it."},
		state("assigned"), state("served")), blank, good))
	b.put(8, 8, coloured(steps(about{"Drift", "none", "Over the fleet: missing (assigned, not served), failed, orphan (served, not assigned), quarantined."},
		state("missing"), state("failed"), state("orphan"), state("quarantined")), watch, bad, "", aside))
	b.put(8, 8, rows("Versions", "What runs, and how often. Two versions are an upgrade under way; more are forgotten sidecars.",
		[]string{"version", "driver", "goversion"},
		column{name: "sidecars", unit: "none", expr: "count by (version, driver, goversion) (" + on("holdfast_build_info") + ")"}))
	b.put(12, 8, areas(about{"Versions over time", "none", "How an upgrade went through the fleet."},
		query{expr: "count by (version) (" + on("holdfast_build_info") + ")", legend: "{{version}}"}))
	b.put(12, 8, rows("Settings", "The settings that decide what becomes of a broker. One line is a fleet of equals.",
		[]string{"session_expired_policy", "assignment", "failover", "registration", "detach", "fence", "guard"},
		column{name: "sidecars", unit: "none", expr: "count by (session_expired_policy, assignment, failover, registration, detach, fence, guard) (" + on("holdfast_policy_info") + ")"}))
}

// overall is a quantile of a histogram over all brokers.
func overall(q float64, histogram string) string {
	return fmt.Sprintf("histogram_quantile(%g, sum by (le) (rate(%s[$__rate_interval])))", q, on(histogram+"_bucket"))
}
