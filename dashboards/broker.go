package main

import "fmt"

// broker is the dashboard of one broker: what is, what happened, and why. Its rows are
// in the order in which a person asks at three in the morning.
func broker() document {
	b := newBoard(brokerUID, "Holdfast / Broker",
		"One broker and its sidecar: may clients be sent there, and if not, since when and why.", "now-1h")
	b.link("Fleet", "Every broker of the cluster, in the same time", fleetUID)
	now(b)
	history(b)
	lease(b)
	topics(b)
	movesOf(b)
	fences(b)
	agent(b)
	return b.document
}

// each is a query whose series are named after the instance, and what the legend adds.
func each(expr, legend string) query {
	if legend != "" {
		legend = " " + legend
	}
	return query{expr: expr, legend: "{{instance}}" + legend}
}

// last is each, for the end of the time shown.
func last(expr, legend string) query {
	q := each(expr, legend)
	q.instant = true
	return q
}

// toFence is the time that is left before the broker is fenced.
var toFence = maximum("holdfast_lease_remaining_seconds") + " - " + maximum("holdfast_lease_detach_margin_seconds")

func now(b *board) {
	b.row("Now")
	b.put(4, 4, word("Clients", "Whether clients may be sent here: attached, active, startup over, broker healthy. If not, Readiness by cause says what is missing.",
		last(maximum("holdfast_ready"), ""), ready))
	b.put(4, 4, word("Attachment", "Attached: renewals are confirmed. Degraded: they fail, and the lease still holds. Detached: the fence point has passed or the lease is gone, and the broker is fenced.",
		last(attachment.expr(), ""), attachment.states))
	b.put(4, 4, word("Mode", "Active, draining or drained, as etcd has it. Drained by Holdfast waits for an operator: find the cause, then holdfast activate.",
		last(mode.expr(), ""), mode.states))
	b.put(3, 4, number(about{"Time to the fence", "s", "What is left of the lease before the broker is fenced. While renewals are confirmed it starts anew with each; without a lease it is not positive."},
		last(toFence, ""), bad, limit{0, watch}, limit{2, good}))
	b.put(3, 4, number(about{"Topics missing", "none", "Assigned to this broker and not served by it. While it is drained they are missing on purpose; else holdfast topics has the errors."},
		last(maxOf("holdfast_topics", `state="missing"`), ""), good, limit{1, watch}))
	b.put(6, 4, rows("Runs", "Version of the sidecar and the driver that it has for its broker.", []string{"instance", "version", "driver"},
		column{name: "sidecars", unit: "none", expr: "count by (version, driver, instance) (" + on("holdfast_build_info") + ")"}))
}

func history(b *board) {
	b.row("What happened")
	b.put(24, 10, timeline("State over time", "Each line is one fact about the broker. Read it from the top: the sidecar is scraped and has started, the broker answers, is registered, attached and active, and so clients may come. Drained for another reason than an operator's word waits for one: find the cause, then holdfast activate.",
		timed{each(maxOf("up"), "scrape"), up},
		timed{each(maximum("holdfast_startup_done"), "startup"), startup},
		timed{each(maximum("holdfast_broker_up"), "broker"), up},
		timed{each(maximum("holdfast_registration_present"), "registration seen"), registered},
		timed{each(attachment.expr(), "attachment"), attachment.states},
		timed{each(mode.expr(), "mode"), mode.states},
		timed{each(drained.expr(), "drained because"), drained.states},
		timed{each(maximum("holdfast_ready"), "clients"), ready}))
	b.put(24, 9, timeline("Readiness by cause", "The conditions for sending clients here. Every one must be clear; the words to each cause are in /ready?full=1 and holdfast status.",
		timed{each(maxBy("holdfast_ready_cause", "cause"), "{{cause}}"), holds}))
	b.put(12, 7, timeline("Signs of a zombie", "The broker serves without a registration, serves topics that are not assigned to it or that another owns, or does not see what changes in etcd.",
		timed{each(maxBy("holdfast_broker_zombie", "kind"), "{{kind}}"), zombie}))
	b.put(12, 7, timeline("What an operator must look at", "Conditions that Holdfast does not end by itself; the runbook of the alert for each has the way out.",
		timed{each(maximum("holdfast_mode_mismatch"), "mode mismatch"), attention},
		timed{each(maximum("holdfast_drain_pending"), "drain pending"), attention},
		timed{each(maximum("holdfast_mass_change_held"), "mass change held"), attention},
		timed{each(maximum("holdfast_identity_conflict"), "identity conflict"), attention},
		timed{each(maximum("holdfast_ill_together"), "ill, and held"), attention},
		timed{each(maximum("holdfast_broker_restart_required"), "restart required"), attention},
		timed{each(maximum("holdfast_state_unsaved"), "state not saved"), attention},
		timed{each(maximum("holdfast_paused"), "recovery"), paused}))
}

func lease(b *board) {
	b.row("Lease")
	remaining := lines(about{"Lease: held and remaining", "s", "Time to the deadline, against the TTL that was granted. Where it meets the margin the broker is fenced; where it meets zero the cluster declares it dead."},
		each(maximum("holdfast_lease_remaining_seconds"), "remaining"),
		each(maximum("holdfast_lease_detach_margin_seconds"), "margin: fenced below"),
		each(maximum("holdfast_lease_ttl_seconds"), "TTL"))
	override(&remaining, 0, fixed(good), property("custom.fillOpacity", 15))
	b.put(12, 9, bound(bound(remaining, 1, bad), 2, blank))
	b.put(12, 9, bound(coloured(lines(about{"Left when a renewal was confirmed", "s", "How near the deadline came before each confirmation: the lowest 1 % and the middle. Low values are near misses, also those between two scrapes."},
		each(quantile(0.01, "holdfast_lease_margin_seconds"), "lowest 1 %"),
		each(quantile(0.5, "holdfast_lease_margin_seconds"), "median"),
		each(maximum("holdfast_lease_detach_margin_seconds"), "margin: fenced below")), watch, good), 2, bad))
	b.put(8, 8, coloured(lines(about{"Duration of renewals", "s", "From the send of a renewal to its confirmation. Near the attempt timeout: etcd's disk or the network is too slow."},
		each(quantile(0.99, "holdfast_lease_renewal_duration_seconds"), "p99"),
		each(quantile(0.5, "holdfast_lease_renewal_duration_seconds"), "median")), watch, good))
	b.put(8, 8, ends(bars(about{"Renewals by result", "ops", "Confirmed, failed without an answer, lost because etcd said so, established anew. Some confirmed at all times is health."},
		each(perSecond("holdfast_lease_renewals_total", "result"), "{{result}}")),
		map[string]string{"confirmed": good, "failed": watch, "lost": bad, "established": blank}))
	b.put(8, 8, bars(about{"Failed renewals by class", "ops", "The class says whom to call: the network, whoever runs etcd, or whoever rotates its passwords."},
		each(perSecond("holdfast_lease_keepalive_failures_total", "class"), "{{class}}")))
	b.put(8, 8, bound(coloured(lines(about{"Failing for", "s", "Time since the last confirmed renewal was sent, while renewals fail. At the line, TTL minus margin, the broker is fenced."},
		each(maximum("holdfast_lease_failing_seconds"), "failing"),
		each(maximum("holdfast_lease_ttl_seconds")+" - "+maximum("holdfast_lease_detach_margin_seconds"), "fenced at")), watch), 1, bad))
	b.put(8, 8, coloured(steps(about{"Failures in a row", "none", "Renewals that failed since the last confirmed one, and how many slow ones were sent to a second etcd endpoint as well (hedged)."},
		each(maximum("holdfast_lease_keepalive_failure_streak"), "failed in a row"),
		each(grown("holdfast_lease_hedges_total"), "hedged")), watch, blank))
	b.put(8, 8, timeline("etcd endpoints", "Whether a request to each endpoint failed in the last five minutes and none since was answered, as this sidecar sees it. One without leader counts as failed; one that is not in use is not asked.",
		timed{each(maxBy("holdfast_etcd_endpoint_up", "endpoint"), "{{endpoint}}"), answers}))
}

func topics(b *board) {
	b.row("Topics")
	b.put(8, 8, coloured(steps(about{"Assigned and served", "none", "What etcd assigns to this broker and what the broker serves of it. The two meet when it is as it should be."},
		each(maxOf("holdfast_topics", `state="assigned"`), "assigned"),
		each(maxOf("holdfast_topics", `state="served"`), "served"),
		each(maxOf("holdfast_topics", `state="loading"`), "loading")), blank, good, watch))
	b.put(8, 8, steps(about{"Drift", "none", "What is not as etcd asks: missing (assigned, not served), failed (the last load failed), orphan (served, not assigned), quarantined (orphans that were paused), held elsewhere (another broker has the lock)."},
		each(maxBy("holdfast_topics", "state", `state=~"missing|failed|orphan|quarantined|held_elsewhere"`), "{{state}}")))
	b.put(8, 8, ends(bars(about{"Loads", "none", "Topic loads by result, counted between two points. Errors and timeouts: holdfast topics, and the broker's own log."},
		each(grown("holdfast_topic_loads_total", "result"), "{{result}}")), results))
	b.put(8, 8, ends(bars(about{"Unloads and quarantines", "none", "Topics that were quiesced or unloaded, by result. Without a drain or a fence they are orphans: find out who else changes assignments."},
		each(grown("holdfast_topic_unloads_total", "result"), "{{result}}")), results))
	b.put(8, 8, coloured(lines(about{"Reconciliation", "s", "How long it takes until the broker is as etcd asks, and how long ago it last was. The second grows while something is missing."},
		each(quantile(0.99, "holdfast_reconcile_duration_seconds"), "duration p99"),
		// 0 stands for never; time() minus it would be the age of the epoch.
		each("time() - ("+maximum("holdfast_reconcile_last_success_timestamp_seconds")+" > 0)", "since the last success"),
		each(maximum("holdfast_reconcile_interval_seconds"), "audit interval")), good, watch, blank))
	b.put(8, 8, bars(about{"Ownership locks and placement", "none", "Locks that another broker held at first, held for longer than the window, or turned out to hold; topics taken and given by rendezvous hashing. All zero with assignments from outside."},
		each(grown("holdfast_acquire_retry_attempts_total"), "lock retried"),
		each(grown("holdfast_acquire_retry_window_exhausted_total"), "window exhausted"),
		each(grown("holdfast_ownership_conflicts_total"), "conflict"),
		each(grown("holdfast_placements_total", "direction"), "{{direction}}")))
	b.put(8, 8, bars(about{"Asked of the broker", "none", "Times that the broker was told a mode, or was asked for its topics, by result."},
		each(grown("holdfast_broker_steers_total", "mode", "result"), "{{mode}}: {{result}}"),
		each(grown("holdfast_topic_listings_total", "result"), "listing: {{result}}")))
}

func movesOf(b *board) {
	b.row("Moves")
	b.put(8, 8, areas(about{"Moves in progress", "none", "Topics that this broker gives away or takes, by phase. One that stays in its phase: holdfast moves names what it waits for, and whose turn it is."},
		each(maxBy("holdfast_moves_in_progress", "phase"), "{{phase}}")))
	b.put(8, 8, coloured(lines(about{"Bytes moved", "Bps", "What this sidecar copies and compares for topics that come to its broker, against --move-rate. Zero with a move in sealed or resumed: it is stalled."},
		each(perSecond("holdfast_move_bytes_total"), "")), good))
	b.put(8, 8, coloured(steps(about{"Drain", "percentunit", "Share of the topics that a drain with --move has moved away; 100 %: none is under way. Below and standing still: holdfast moves."},
		each(maximum("holdfast_drain_progress_ratio"), "")), good))
	b.put(12, 8, lines(about{"Duration of phases", "s", "The middle and the slowest 1 % of each phase whose end this sidecar wrote. From draining to switched producers are refused: that is what they feel."},
		each(quantile(0.5, "holdfast_move_phase_duration_seconds", "phase"), "{{phase}}, median"),
		each(quantile(0.99, "holdfast_move_phase_duration_seconds", "phase"), "{{phase}}, p99")))
	b.put(12, 8, ends(bars(about{"Moves by result", "none", "Moves whose end this sidecar wrote. Failed: holdfast moves says why, and where the topic is served."},
		each(grown("holdfast_moves_total", "result"), "{{result}}")), map[string]string{"done": good, "cancelled": aside, "failed": bad}))
}

func fences(b *board) {
	b.row("Fences and boots")
	b.put(8, 8, bars(about{"Detachments by reason", "none", "Each one kept clients away. broker_down: its own end; fence_point and lease_lost: etcd or the way to it; identity_conflict: two sidecars with one id."},
		each(grown("holdfast_detachments_total", "reason"), "{{reason}}")))
	b.put(8, 8, bound(lines(about{"Duration of fence steps", "s", "The slowest 1 % of each step of the ladder; empty while nothing was fenced. All steps together must end within the margin."},
		each(quantile(0.99, "holdfast_fence_duration_seconds", "step"), "{{step}}"),
		each(maximum("holdfast_lease_detach_margin_seconds"), "margin")), 1, bad))
	b.put(8, 8, bars(about{"Failed fence steps", "none", "When a step fails the next one starts at once. If none succeeded, stop the broker by hand."},
		each(grown("holdfast_fence_failures_total", "step"), "{{step}}")))
	b.put(8, 8, coloured(bars(about{"Registrations lost", "none", "By cause; adopted: found under another lease and bound to ours. After lease_expired the cluster may have declared the broker dead."},
		each(grown("holdfast_registration_lost_total", "cause"), "{{cause}}"),
		each(grown("holdfast_registration_adoptions_total"), "adopted")), "", blank))
	b.put(8, 8, steps(about{"Epoch of the registration", "none", "Create revision of the registration in etcd. Each step is another registration; zero: none is held."},
		each(maximum("holdfast_registration_epoch"), "")))
	b.put(8, 8, coloured(steps(about{"Guard", "none", "Guards that stand by, were started, and stopped the broker because the sidecar was not heard of. With a broker that runs and guards on, one stands by."},
		each(maximum("holdfast_guard_up"), "stands by"),
		each(grown("holdfast_guard_starts_total"), "started"),
		each(grown("holdfast_guard_fired_total"), "fired")), good, blank, bad))
	fired := number(about{"Guard last fired", "dateTimeFromNow", "When the guard stopped the broker because the sidecar was not heard of, as far as the journal goes back. Find out what froze or killed the sidecar."},
		last("1000 * "+maximum("holdfast_guard_last_fired_timestamp_seconds"), ""), bad)
	fired.FieldConfig.Defaults.Mappings = mappings([]state{{0, "never", good}})
	b.put(4, 7, fired)
	b.put(9, 7, rows("Boots", "Starts of the broker since the sidecar started, by kind and by the reason of the mode that followed. stale_restart waits for an operator.",
		[]string{"instance", "kind", "reason"},
		// The sidecar counts the boot that it begins with before anybody can scrape it, so
		// the counter itself is shown: increase would not see that one.
		column{name: "boots", unit: "none", expr: "sum by (instance, kind, reason) (" + on("holdfast_broker_boots_total") + " > 0)", width: 90}))
	b.put(11, 7, rows("Settings that decide", "What becomes of this broker when its registration is lost, and what a fence may do. They should be the same in a whole cluster.",
		[]string{"instance", "session_expired_policy", "assignment", "failover", "registration", "detach", "fence", "guard"},
		column{name: "sidecars", unit: "none", width: 90, expr: "count by (instance, session_expired_policy, assignment, failover, registration, detach, fence, guard) (" +
			on("holdfast_policy_info") + ")"}))
}

func agent(b *board) {
	b.row("Sidecar")
	b.put(8, 8, bound(coloured(lines(about{"Age of the agent's loop", "s", "How long ago the loop last ran, when it was scraped. It runs every second; beyond the line the sidecar hangs and /live fails."},
		each("clamp_min(timestamp("+on("holdfast_agent_loop_last_run_timestamp_seconds")+") - "+on("holdfast_agent_loop_last_run_timestamp_seconds")+", 0)", "age"),
		each("0 * "+maximum("holdfast_agent_loop_last_run_timestamp_seconds")+" + 10", "hangs at")), good), 1, bad))
	b.put(8, 8, bars(about{"Surprises", "none", "Host suspensions (deadlines ran on meanwhile), topics that the broker had lost and that were made anew, changes of readiness. Each should be rare."},
		each(grown("holdfast_agent_suspensions_total"), "suspended"),
		each(grown("holdfast_topics_made_anew_total"), "topic made anew"),
		each(grown("holdfast_ready_transitions_total", "to"), "became {{to}}")))
	b.put(8, 8, timeline("How it works", "Whether it only pretends (--shadow), whether the guard stands by, and whether the last settings read anew are in force; refused: those from before are.",
		timed{each(maximum("holdfast_shadow"), "shadow"), shadow},
		timed{each(maximum("holdfast_guard_up"), "guard"), standby},
		timed{each(maximum("holdfast_config_last_reload_successful"), "settings"), applied}))
	b.put(8, 8, bars(about{"Broker process", "none", "Transitions of the broker that the sidecar itself started (run -- CMD). Many ended and started: read the broker's log."},
		each(grown("holdfast_broker_process_changes_total", "to"), "{{to}}")))
	b.put(8, 8, bars(about{"Only pretended", "none", "What --shadow would have done and did not, by action. Without --shadow all is zero."},
		each(grown("holdfast_would_have_total", "action"), "{{action}}")))
	b.put(8, 8, lines(about{"Duration of scrapes", "s", "How long Prometheus waits for this sidecar's metrics. Growing with nothing else: the machine is starved."},
		each(maxOf("scrape_duration_seconds"), "")))
}

// maxOf is maximum, of the series that the matchers choose.
func maxOf(metric string, matchers ...string) string {
	return "max by (cluster, job, instance) (" + on(metric, matchers...) + ")"
}

// maxBy is maximum, for each value of a label.
func maxBy(metric, label string, matchers ...string) string {
	return fmt.Sprintf("max by (cluster, job, instance, %s) (%s)", label, on(metric, matchers...))
}
