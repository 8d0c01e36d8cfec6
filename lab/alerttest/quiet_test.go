package alerttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
)

const (
	scrape  = 15 * time.Second
	watched = 40 * time.Minute // by each course of events
)

// run is a value that lasts, growing by step with each scrape.
type run struct {
	value float64
	lasts time.Duration // 0: to the end
	step  float64
}

// course is what one series does.
type course []run

func always(v float64) course  { return course{{value: v}} }
func growing(v float64) course { return course{{step: v}} }

// during is bad from at on for d, and good before and after.
func during(at, d time.Duration, good, bad float64) course {
	return course{{value: good, lasts: at}, {value: bad, lasts: d}, {value: good}}
}

func from(at time.Duration, before, after float64) course {
	return course{{value: before, lasts: at}, {value: after}}
}

// samples are the values of all scrapes.
func (c course) samples() (values []string) {
	most := int(watched / scrape)
	for _, r := range c {
		n := int(r.lasts / scrape)
		if r.lasts == 0 {
			n = most - len(values)
		}
		for i := range n {
			values = append(values, fmt.Sprint(r.value+float64(i)*r.step))
		}
	}
	return values[:min(len(values), most)]
}

// broker is every series of one sidecar that the rules look at.
type broker map[string]course

// healthy is a broker that has been in service for long.
func healthy() broker {
	return broker{
		`up`: always(1), `holdfast_build_info`: always(1), `holdfast_shadow`: always(0), `holdfast_paused`: always(0),
		`holdfast_policy_info{registration="own", guard="on"}`: always(1),
		`holdfast_ready`: always(1), `holdfast_ready_transitions_total{to="not_ready"}`: always(0),
		`holdfast_broker_up`: always(1), `holdfast_detached`: always(0), `holdfast_attachment{state="degraded"}`: always(0),
		`holdfast_identity_conflict`: always(0), `holdfast_broker_restart_required`: always(0),
		`holdfast_broker_mode{mode="active"}`: always(1), `holdfast_broker_mode{mode="drained"}`: always(0), `holdfast_broker_mode{mode="draining"}`: always(0),
		`holdfast_drained{reason="operator"}`: always(0), `holdfast_drained{reason="stale_restart"}`: always(0), `holdfast_drained{reason="pod_stop"}`: always(0),
		`holdfast_drain_pending`: always(0), `holdfast_mode_mismatch`: always(0), `holdfast_ill_together`: always(0),
		`holdfast_lease_ttl_seconds`: always(32), `holdfast_lease_detach_margin_seconds`: always(10.667),
		`holdfast_lease_remaining_seconds`: always(29), `holdfast_lease_keepalive_failure_streak`: always(0),
		`holdfast_registration_lost_total{cause="lease_expired"}`: always(0), `holdfast_registration_lost_total{cause="broker_down"}`: always(0),
		`holdfast_lease_renewals_total{result="confirmed"}`: growing(4), `holdfast_lease_renewals_total{result="failed"}`: always(0),
		`holdfast_lease_renewal_duration_seconds_bucket{le="0.01"}`: growing(4), `holdfast_lease_renewal_duration_seconds_bucket{le="+Inf"}`: growing(4),
		`holdfast_detachments_total{reason="fence_point"}`: always(0), `holdfast_etcd_endpoint_up{endpoint="http://e1:2379"}`: always(1),
		`holdfast_topics{state="missing"}`: always(0), `holdfast_topics{state="held_elsewhere"}`: always(0), `holdfast_topics{state="quarantined"}`: always(0),
		`holdfast_broker_zombie{kind="unregistered"}`: always(0), `holdfast_broker_zombie{kind="orphan_topics"}`: always(0),
		`holdfast_fence_failures_total{step="stop"}`: always(0), `holdfast_guard_up`: always(1), `holdfast_guard_last_fired_timestamp_seconds`: always(0),
		`holdfast_topic_loads_total{result="ok"}`: always(0), `holdfast_topic_loads_total{result="error"}`: always(0),
		`holdfast_topic_unloads_total{result="ok"}`: always(0), `holdfast_topic_unloads_total{result="error"}`: always(0),
		`holdfast_topic_listings_total{result="ok"}`: growing(1), `holdfast_topic_listings_total{result="error"}`: always(0),
		`holdfast_reconcile_last_success_timestamp_seconds`: growing(15), `holdfast_reconcile_interval_seconds`: always(30), `holdfast_mass_change_held`: always(0),
		`holdfast_moves_in_progress{phase="draining"}`: always(0), `holdfast_moves_in_progress{phase="sealed"}`: always(0), `holdfast_move_bytes_total`: always(0),
		`holdfast_move_phase_duration_seconds_count{phase="draining"}`: always(0), `holdfast_move_phase_duration_seconds_count{phase="sealed"}`: always(0),
		`holdfast_state_unsaved`: always(0), `holdfast_topics_made_anew_total`: always(0), `holdfast_config_last_reload_successful`: always(1),
		`holdfast_config_last_reload_success_timestamp_seconds`: always(1000), `holdfast_agent_start_timestamp_seconds`: always(1000),
		`holdfast_agent_loop_last_run_timestamp_seconds`: growing(15),
	}
}

// but is the broker with some series doing something else, and without those that are nil.
func (b broker) but(t *testing.T, changes broker) broker {
	t.Helper()
	for series, c := range changes {
		if _, known := b[series]; !known {
			t.Fatalf("no rule looks at %s", series)
		}
		if b[series] = c; c == nil {
			delete(b, series)
		}
	}
	return b
}

// scraped are its series under the name; nothing answers from at on for d.
func (b broker) scraped(name string, at, d time.Duration) (all []Series) {
	for series, c := range b {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		values := c.samples()
		for i := int(at / scrape); i < int((at+d)/scrape); i++ {
			switch {
			case metric == "up":
				values[i] = "0"
			case i == int(at/scrape):
				values[i] = "stale"
			default:
				values[i] = "_"
			}
		}
		all = append(all, Series{
			Series: fmt.Sprintf(`%s{job="holdfast", instance=%q, %s}`, metric, name, labels),
			Values: strings.Join(values, " "),
		})
	}
	return all
}

func TestNothingFiresWhileNothingIsWrong(t *testing.T) {
	if testing.Short() {
		t.Skip("evaluates all rules over forty minutes, a dozen times")
	}
	const at = 5 * time.Minute
	restart := func(at time.Duration) broker {
		return broker{
			`holdfast_ready`: during(at, time.Minute, 1, 0), `holdfast_broker_up`: during(at, 30*time.Second, 1, 0),
			`holdfast_lease_remaining_seconds`:                 {{value: 29, lasts: at}, {value: 20, lasts: scrape}, {value: 8, lasts: scrape}, {value: 29}},
			`holdfast_attachment{state="degraded"}`:            during(at, 30*time.Second, 0, 1),
			`holdfast_topics{state="missing"}`:                 during(at, time.Minute, 0, 3),
			`holdfast_topic_loads_total{result="ok"}`:          from(at+time.Minute, 0, 3),
			`holdfast_agent_loop_last_run_timestamp_seconds`:   growing(15),
			`holdfast_ready_transitions_total{to="not_ready"}`: from(at, 0, 1),
		}
	}
	const work = 20 * time.Minute
	drain := broker{
		`holdfast_ready`: during(at, work+4*time.Minute, 1, 0), `holdfast_ready_transitions_total{to="not_ready"}`: from(at, 0, 1),
		`holdfast_broker_mode{mode="active"}`: during(at, work+4*time.Minute, 1, 0), `holdfast_broker_mode{mode="drained"}`: during(at, work+4*time.Minute, 0, 1),
		`holdfast_drained{reason="operator"}`: during(at, work+4*time.Minute, 0, 1), `holdfast_drain_pending`: during(at, time.Minute, 0, 1),
		`holdfast_topics{state="missing"}`: during(at, work+4*time.Minute, 0, 3),
		`holdfast_broker_up`:               during(at+2*time.Minute, work, 1, 0), `holdfast_guard_up`: during(at+2*time.Minute, work, 1, 0),
		`holdfast_lease_remaining_seconds`: {{value: 29, lasts: at + 2*time.Minute}, {value: 5, lasts: 30 * time.Second}, {value: -100, lasts: work - 30*time.Second}, {value: 29}},
	}
	// One after another: it leaves by preStop, is replaced, and is active again by itself.
	returned := func(at time.Duration) broker {
		const d = 2 * time.Minute
		return broker{
			`holdfast_ready`: during(at, d, 1, 0), `holdfast_ready_transitions_total{to="not_ready"}`: from(at, 0, 1), `holdfast_detached`: during(at, d-scrape, 0, 1),
			`holdfast_lease_remaining_seconds`: during(at, d-scrape, 29, 0), `holdfast_topics{state="missing"}`: during(at, d, 0, 3),
			`holdfast_broker_up`: during(at+scrape, d-2*scrape, 1, 0), `holdfast_guard_up`: during(at, d-scrape, 1, 0),
			`holdfast_topic_loads_total{result="ok"}`: from(at+d, 0, 3),
			`holdfast_agent_start_timestamp_seconds`:  from(at+time.Minute, 1000, 2000),
		}
	}
	// The same with manifests of before: drained by preStop, and activated after some minutes.
	replaced := func(at time.Duration) broker {
		const d = 6 * time.Minute
		return broker{
			`holdfast_ready`: during(at, d, 1, 0), `holdfast_ready_transitions_total{to="not_ready"}`: from(at, 0, 1),
			`holdfast_broker_mode{mode="active"}`: during(at, d, 1, 0), `holdfast_broker_mode{mode="drained"}`: during(at, d, 0, 1),
			`holdfast_drained{reason="pod_stop"}`: during(at, d, 0, 1), `holdfast_drain_pending`: during(at, time.Minute, 0, 1),
			`holdfast_topics{state="missing"}`: during(at, d, 0, 3), `holdfast_broker_up`: during(at+time.Minute, 2*time.Minute, 1, 0), `holdfast_guard_up`: during(at+time.Minute, 2*time.Minute, 1, 0),
			`holdfast_agent_start_timestamp_seconds`: from(at+time.Minute, 1000, 2000),
		}
	}
	pods := func(course func(at time.Duration) broker, each, from, away time.Duration) (all []Series) {
		for n := range 3 {
			at := at + time.Duration(n)*each
			all = append(all, healthy().but(t, course(at)).scraped(fmt.Sprintf("b%d", n+1), at+from, away)...)
		}
		return all
	}
	// Two topics go elsewhere: one waits until the other is copied, which takes long.
	gives := broker{
		`holdfast_moves_in_progress{phase="draining"}`:                 during(at, 15*time.Minute, 0, 1),
		`holdfast_moves_in_progress{phase="sealed"}`:                   during(at, 20*time.Minute, 0, 1),
		`holdfast_move_phase_duration_seconds_count{phase="draining"}`: {{lasts: at}, {value: 1, lasts: 15 * time.Minute}, {value: 2}},
	}
	takes := broker{
		`holdfast_moves_in_progress{phase="draining"}`:               during(at, 15*time.Minute, 0, 1),
		`holdfast_moves_in_progress{phase="sealed"}`:                 during(at, 20*time.Minute, 0, 1),
		`holdfast_move_phase_duration_seconds_count{phase="sealed"}`: {{lasts: at + 15*time.Minute}, {value: 1, lasts: 5 * time.Minute}, {value: 2}},
		`holdfast_move_bytes_total`:                                  {{lasts: at}, {step: 1e8, lasts: 20 * time.Minute}, {value: 80e8}},
	}
	pause := broker{
		`holdfast_paused`: during(at, work+2*time.Minute, 0, 1), `holdfast_ready`: during(at+30*time.Second, work, 1, 0),
		`holdfast_broker_up`: during(at+30*time.Second, work, 1, 0), `holdfast_guard_up`: during(at+30*time.Second, work, 1, 0),
		`holdfast_detached`: during(at+time.Minute, work, 0, 1), `holdfast_topics{state="missing"}`: during(at+30*time.Second, work, 0, 3),
		`holdfast_lease_remaining_seconds`:                      {{value: 29, lasts: at + 30*time.Second}, {value: 5, lasts: 30 * time.Second}, {value: -100, lasts: work - time.Minute}, {value: 29}},
		`holdfast_registration_lost_total{cause="broker_down"}`: from(at+90*time.Second, 0, 1),
	}
	first := broker{
		`holdfast_ready`: from(time.Minute, 0, 1), `holdfast_broker_up`: from(30*time.Second, 0, 1), `holdfast_broker_mode{mode="active"}`: from(45*time.Second, 0, 1),
		`holdfast_detached`: from(45*time.Second, 1, 0), `holdfast_lease_ttl_seconds`: from(45*time.Second, 0, 32), `holdfast_lease_remaining_seconds`: from(45*time.Second, 0, 29),
		`holdfast_etcd_endpoint_up{endpoint="http://e1:2379"}`: from(30*time.Second, 0, 1), `holdfast_guard_up`: from(45*time.Second, 0, 1),
		`holdfast_reconcile_last_success_timestamp_seconds`: {{lasts: time.Minute}, {value: 60, step: 15}},
	}
	cut := broker{
		`holdfast_lease_remaining_seconds`: during(at, scrape, 29, 17), `holdfast_lease_keepalive_failure_streak`: during(at, scrape, 0, 11),
		`holdfast_attachment{state="degraded"}`: during(at, scrape, 0, 1), `holdfast_etcd_endpoint_up{endpoint="http://e1:2379"}`: during(at, scrape, 1, 0),
		`holdfast_lease_renewals_total{result="failed"}`: from(at, 0, 11),
	}
	unleased := broker{
		`holdfast_policy_info{registration="own", guard="on"}`: nil, `holdfast_etcd_endpoint_up{endpoint="http://e1:2379"}`: nil,
		`holdfast_lease_ttl_seconds`: always(0), `holdfast_lease_remaining_seconds`: always(0), `holdfast_guard_up`: always(0),
		`holdfast_lease_renewals_total{result="confirmed"}`: always(0), `holdfast_lease_renewal_duration_seconds_bucket{le="0.01"}`: always(0),
		`holdfast_lease_renewal_duration_seconds_bucket{le="+Inf"}`: always(0), `holdfast_registration_lost_total{cause="lease_expired"}`: from(at, 0, 1),
	}
	shadow := broker{
		`holdfast_shadow`: always(1), `holdfast_ready`: from(at, 1, 0), `holdfast_detached`: from(at, 0, 1), `holdfast_lease_remaining_seconds`: from(at, 29, -50),
		`holdfast_registration_lost_total{cause="lease_expired"}`: from(at, 0, 1), `holdfast_broker_zombie{kind="unregistered"}`: from(at, 0, 1),
		`holdfast_drained{reason="stale_restart"}`: from(at, 0, 1), `holdfast_topics{state="missing"}`: from(at, 0, 3), `holdfast_guard_up`: always(0),
	}
	fleet := func(change func(n int) broker, at, d time.Duration) (all []Series) {
		for n := range 3 {
			all = append(all, healthy().but(t, change(n)).scraped(fmt.Sprintf("b%d", n+1), at, d)...)
		}
		return all
	}
	same := func(b broker) func(int) broker { return func(int) broker { return b } }
	none := Series{`holdfast_policy_info{job="holdfast", instance="b1", registration="none", guard="off"}`, strings.Join(always(1).samples(), " ")}
	beside := healthy().scraped("b2", 0, 0)

	for name, series := range map[string][]Series{
		"three healthy brokers":                                   fleet(same(nil), 0, 0),
		"a rolling restart":                                       fleet(func(n int) broker { return restart(at + time.Duration(n)*2*time.Minute) }, 0, 0),
		"a restart of the only broker":                            healthy().but(t, restart(at)).scraped("b1", 0, 0),
		"a restart of the only sidecar, gone for 90 s":            healthy().scraped("b1", at, 90*time.Second),
		"a missed scrape of everything":                           fleet(same(nil), at, scrape),
		"a rolling update of pods":                                pods(returned, 3*time.Minute, 2*scrape, time.Minute),
		"one of pods that drain, each slow to pull its image":     pods(replaced, 8*time.Minute, time.Minute, 3*time.Minute),
		"a planned drain; the broker is worked on":                append(healthy().but(t, drain).scraped("b1", 0, 0), beside...),
		"a planned drain; broker and sidecar are worked on":       append(healthy().but(t, drain).scraped("b1", at+3*time.Minute, 10*time.Minute), beside...),
		"a pause, in which the broker is down":                    append(healthy().but(t, pause).scraped("b1", 0, 0), beside...),
		"two topics move, one after another":                      append(healthy().but(t, gives).scraped("b1", 0, 0), healthy().but(t, takes).scraped("b2", 0, 0)...),
		"the first boot of a fleet":                               fleet(same(first), 0, 0),
		"a cut from etcd of 15 s, everywhere":                     fleet(same(cut), 0, 0),
		"--registration none; the broker was away":                append(healthy().but(t, unleased).scraped("b1", 0, 0), none),
		"--shadow, whatever it supposes, beside a healthy broker": append(healthy().but(t, shadow).scraped("b1", 0, 0), beside...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			end := model.Duration(watched - scrape)
			f := File{RuleFiles: []string{rulesFile}, EvaluationInterval: model.Duration(scrape)}
			err := f.Run(t.Context(), &Test{
				Interval: model.Duration(scrape), InputSeries: series,
				PromqlExprTest: []ExprCase{
					{Expr: `last_over_time(ALERTS{alertstate="firing"}[40m])`, EvalTime: end},
					// Nothing would fire either if the rules found nothing to look at.
					{Expr: `count(last_over_time(instance:holdfast_in_service:min2m[40m])) > bool 0`, EvalTime: end, ExpSamples: []ExpectedSample{{"{}", 1}}},
				},
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
