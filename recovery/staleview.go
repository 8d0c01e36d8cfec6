package recovery

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// ViewPatience is how long what a broker believes may differ from what is so: longer than a
// watch that lives takes, also while etcd elects a leader.
const ViewPatience = 10 * time.Second

// difference is a topic that only one side knows of.
type difference struct {
	topic string
	extra bool // the broker believes in it, and it is not so; else the other way round
}

// StaleView is how a broker's view compares with etcd's: of its assignments, or of who owns what. The zero one
// knows of no difference.
type StaleView struct {
	since map[difference]time.Time
	Stale bool
	Since time.Time // of the oldest difference that made it stale
	Count int       // differences that lasted
	First string    // of their topics, by name
}

// Next compares once more. Each topic has its own time: a cluster that moves topics all the
// while differs somewhere at every moment, and nobody is blind.
func (v StaleView) Next(actual, believed []string, now time.Time) StaleView {
	next := StaleView{since: map[difference]time.Time{}}
	is, thought := set(actual), set(believed)
	note := func(d difference) {
		at, known := v.since[d]
		if !known {
			at = now
		}
		next.since[d] = at
		if now.Sub(at) <= ViewPatience {
			return
		}
		next.Count++
		if next.First == "" || d.topic < next.First {
			next.First = d.topic
		}
		if !next.Stale || at.Before(next.Since) {
			next.Stale, next.Since = true, at
		}
	}
	for topic := range is {
		if !thought[topic] {
			note(difference{topic: topic})
		}
	}
	for topic := range thought {
		if !is[topic] {
			note(difference{topic: topic, extra: true})
		}
	}
	return next
}

// Unread is the view after a read that failed: the verdict stands, and what differed begins
// anew, since nothing is known of the time in between (safety rules 4 and 10).
func (v StaleView) Unread() StaleView {
	if !v.Stale {
		return StaleView{}
	}
	v.since = maps.Clone(v.since)
	return v
}

// Differs reports whether there is any difference, lasting or not.
func (v StaleView) Differs() bool { return len(v.since) > 0 }

// Detail is one sentence with the remedy; empty: the view is not stale.
func (v StaleView) Detail() string {
	if !v.Stale {
		return ""
	}
	topics := "1 topic"
	if v.Count != 1 {
		topics = fmt.Sprintf("%d topics", v.Count)
	}
	return fmt.Sprintf("what the broker believes differs from etcd in %s, first %s: its watches have died: restart the broker", topics, v.First)
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for topic := range slices.Values(list) {
		m[topic] = true
	}
	return m
}
