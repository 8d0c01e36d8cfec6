package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/agent"
)

// worstCase is what 'holdfast check' promises for a broker whose process can be stopped,
// with that TTL and all else at its default.
func worstCase(t *testing.T, ttl string) agent.Timeline {
	t.Helper()
	c, err := agent.Load(agent.Sources{Flags: flags(map[string]string{"driver": "nats", "broker-process": "nats-server", "lease-ttl": ttl})})
	if err != nil {
		t.Fatal(err)
	}
	return agent.WorstCase(c)
}

func TestTheTableOfTTLsIsWhatCheckPromises(t *testing.T) {
	rows := regexp.MustCompile(`(?m)^\| ([0-9ms]+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$`).FindAllStringSubmatch(read(t, "docs/deployment.md"), -1)
	if len(rows) < 3 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		w := worstCase(t, row[1])
		var fence time.Duration
		for _, m := range w.Cut {
			if strings.HasPrefix(m.What, "fence point") {
				fence = m.At
			}
		}
		for i, want := range []time.Duration{fence, w.SurvivesDetach, w.SurvivesExpiry, w.Crash[len(w.Crash)-1].At} {
			if got := want.Round(time.Millisecond).String(); row[i+2] != got {
				t.Errorf("TTL %s, column %d: the page says %s, check %s", row[1], i+2, row[i+2], got)
			}
		}
	}
}

func TestThePictureShowsTheTimelineOfTheDefaults(t *testing.T) {
	picture := read(t, "docs/images/timeline.svg")
	for _, m := range worstCase(t, "32s").Cut {
		if strings.HasPrefix(m.What, "first retry") { // too near to the renewal to be drawn
			continue
		}
		if label := strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf(">%.1f", m.At.Seconds()), "0"), "."); !strings.Contains(picture, label+" s<") && !strings.Contains(picture, label+"<") {
			t.Errorf("%v, %s: the picture has no %s", m.At, m.What, label)
		}
	}
}

func TestThePageAboutReloadNamesWhatIsTakenUp(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "docs/deployment.md"), "## Changing settings")
	list, _, _ := strings.Cut(section, "If anything else")
	var named []string
	for _, m := range regexp.MustCompile("`([a-z-]+)`[,\n]").FindAllStringSubmatch(list, -1) {
		named = append(named, m[1])
	}
	if live := agent.LiveSettings(); !slices.Equal(named, live) {
		t.Errorf("the page names %v, taken up are %v", named, live)
	}
}
