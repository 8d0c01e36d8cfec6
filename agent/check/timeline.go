package check

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/recovery"
)

// Moment is one line of a timeline.
type Moment struct {
	At   time.Duration // after the start of its story
	What string
}

// Timeline is what the settings promise in the worst case. It counts with the TTL
// that was asked for; etcd may grant a longer one. It promises nothing about the
// time that a person, or the broker itself, takes.
type Timeline struct {
	// Cut tells of etcd going away right after the last confirmed renewal was sent. Empty:
	// there is no etcd.
	Cut []Moment
	// Crash tells of the broker dying while all else is well, seen by health
	// checks alone; a watched process or connection is noticed within 200 ms.
	Crash []Moment
	// SurvivesDetach and SurvivesExpiry are the longest cuts, starting at any
	// phase, that do not detach the broker, or expire the registration. Both are
	// positive: see LongestRenewInterval.
	SurvivesDetach, SurvivesExpiry time.Duration
	// Unsafe says, one sentence each, what these settings cannot hold. Empty: safe.
	Unsafe []string
}

// WorstCase works out the timeline of valid settings.
func WorstCase(c config.Config) Timeline {
	c = c.Effective()
	t := c.Timing()
	if c.Unleased() {
		return awayTimeline(c)
	}
	tl := Timeline{
		Cut: []Moment{
			{0, "the last renewal that etcd confirms is sent"},
			{t.RenewInterval, "next renewal; it fails: degraded, clients stay"},
			{t.RenewInterval + t.RetryAfter(), "first retry, at the latest; then one at least every " + config.FormatDuration(lease.RetryCeiling)},
		},
		SurvivesDetach: t.SurvivesDetach(),
		SurvivesExpiry: t.SurvivesExpiry(),
	}
	if c.Detach {
		tl.Cut = append(tl.Cut, fenceMoments(c, t)...)
	}
	tl.Cut = append(tl.Cut, Moment{t.TTL, "deadline: etcd may delete the registration, others may take over"})

	noticed := noticedAfter(c)
	gone := noticed + t.TTL
	how := "its TTL has run out"
	if c.RestartGrace > 0 && noticed+c.RestartGrace < gone {
		gone, how = noticed+c.RestartGrace, "the restart grace is over and the lease revoked"
	}
	tl.Crash = []Moment{
		{0, "the broker dies, right after a good health check"},
		{noticed, "noticed by health checks, at the latest: not ready, renewals stop"},
		{gone, "the registration is gone: " + how + "; " + failoverText(c.Failover)},
	}

	if !c.Detach {
		tl.unsafe("--detach=false: a broker that is cut off from etcd goes on serving after its registration is gone: leave it out")
	}
	tl.noticesInTime(c)
	return tl
}

// noticesInTime adds what is unsafe about when a dead broker is noticed.
func (tl *Timeline) noticesInTime(c config.Config) {
	if noticed := noticedAfter(c); noticed >= c.LeaseTTL {
		tl.unsafe("--health-fall %d: a dead broker is noticed after %s, no sooner than --lease-ttl %s: raise --lease-ttl, or lower --health-fall, --health-interval %s or --health-timeout %s",
			c.HealthFall, config.FormatDuration(noticed), config.FormatDuration(c.LeaseTTL), config.FormatDuration(c.HealthInterval), config.FormatDuration(c.HealthTimeout))
	}
}

// awayTimeline is the worst case of a broker whose own cluster keeps its registration.
func awayTimeline(c config.Config) Timeline {
	noticed := noticedAfter(c)
	gone := noticed + c.LeaseTTL
	if c.RestartGrace > 0 {
		gone = noticed + c.RestartGrace
	}
	tl := Timeline{Crash: []Moment{
		{0, "the broker dies, right after a good health check"},
		{noticed, "noticed by health checks, at the latest: not ready"},
		{gone, "away for too long, at the latest: drained when it comes back, if its cluster says that others are active"},
	}}
	tl.noticesInTime(c)
	return tl
}

func (tl *Timeline) unsafe(format string, args ...any) {
	tl.Unsafe = append(tl.Unsafe, fmt.Sprintf(format, args...))
}

// fenceMoments are those of the fence ladder when every step takes all of its time.
func fenceMoments(c config.Config, t lease.Timing) []Moment {
	fence := t.TTL - t.Margin
	stop := slices.Contains(c.Fence, string(recovery.StepStop))
	var list []Moment
	if slices.Contains(c.Fence, string(recovery.StepQuiesce)) {
		list = append(list, Moment{fence, "fence point: detached, not ready, topics quiesced"})
		if stop {
			list = append(list, Moment{fence + t.Margin/3, "not proven to be quiesced by now: the broker's process is stopped"})
		}
	} else if stop {
		list = append(list, Moment{fence, "fence point: detached, not ready, the broker's process is stopped"})
	}
	if len(c.Fence) == 1 {
		list = append(list, Moment{fence, "fence point: detached, not ready, and nothing else: the broker's storage fences it"})
	}
	if stop {
		last := "the last step has ended"
		if c.Guard == "on" {
			last += "; if this sidecar hangs, its guard stops the broker now"
		}
		list = append(list, Moment{time.Duration(lease.Validity{TTL: t.TTL, Margin: t.Margin}.StopAt()), last})
	}
	return list
}

// noticedAfter counts the checks that must fail, the last of them up to its timeout;
// one that takes longer than the interval puts off the next.
func noticedAfter(c config.Config) time.Duration {
	between := max(c.HealthInterval, c.HealthTimeout)
	return c.HealthInterval + time.Duration(c.HealthFall-1)*between + c.HealthTimeout
}

func failoverText(failover string) string {
	if failover == "hold" {
		return "its topics wait for it (failover hold)"
	}
	return "failover may begin"
}

// WriteTo prints the timeline for a person.
func (tl Timeline) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	story := func(title string, moments []Moment) {
		fmt.Fprintf(&b, "%s\n", title)
		for _, m := range moments {
			fmt.Fprintf(&b, "  %9s  %s\n", "+"+config.FormatDuration(m.At), m.What)
		}
	}
	if len(tl.Cut) > 0 {
		story("When etcd goes away", tl.Cut)
		fmt.Fprintf(&b, "  cuts survived, starting at any moment: %s without detaching, %s without losing the registration\n",
			config.FormatDuration(tl.SurvivesDetach), config.FormatDuration(tl.SurvivesExpiry))
	}
	story("When the broker dies", tl.Crash)
	fmt.Fprintln(&b, "  sooner, within 200ms, where its process or a held connection can be watched")
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
