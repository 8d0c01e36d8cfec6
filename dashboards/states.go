package main

import (
	"fmt"
	"strconv"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// One meaning, one colour, on both dashboards and in both themes. They differ for
// colour-blind readers, too, which green beside red would not.
const (
	good  = "blue"               // as it should be
	watch = "orange"             // on the way, or at risk: look at it
	bad   = "semi-dark-red"      // clients are kept away, or something is lost
	aside = "super-light-purple" // taken out on purpose, or waiting for a person
	blank = "#808080"            // not known, or not in use
)

// state is one value of a series of states.
type state struct {
	value        int
	text, colour string
}

// mappings are the states as Grafana shows them.
func mappings(states []state) []dashboard.ValueMapping {
	options := map[string]dashboard.ValueMappingResult{}
	for i, s := range states {
		options[strconv.Itoa(s.value)] = dashboard.ValueMappingResult{
			Text: ptr(s.text), Color: ptr(s.colour), Index: ptr(int32(i)),
		}
	}
	return []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: dashboard.MappingTypeValueToText, Options: options}}}
}

// enum is a metric that has one series for each of its values, with 1 for the one
// that holds. Its states are numbered from 1 in the order of the values; 0: none holds.
type enum struct {
	metric, label string
	values        []string
	states        []state
}

// expr is one series with the number of the value that holds.
func (e enum) expr() string {
	s := ""
	for i, v := range e.values {
		if i > 0 {
			s += " or "
		}
		s += fmt.Sprintf("%d * %s", i+1, on(e.metric, fmt.Sprintf("%s=%q", e.label, v)))
	}
	return "sum by (cluster, job, instance) (" + s + ")"
}

var (
	attachment = enum{"holdfast_attachment", "state", []string{"detached", "degraded", "attached"}, []state{
		{0, "unknown", blank}, {1, "detached", bad}, {2, "degraded", watch}, {3, "attached", good}}}
	mode = enum{"holdfast_broker_mode", "mode", []string{"drained", "draining", "active"}, []state{
		{0, "unknown", blank}, {1, "drained", aside}, {2, "draining", watch}, {3, "active", good}}}
	drained = enum{"holdfast_drained", "reason", []string{"operator", "join", "stale_restart", "registration_expired",
		"restored_backup", "corrupt_state", "unreadable_mode", "other", "unknown_data", "data_missing", "unreadable_record"}, []state{
		{0, "not drained", good}, {1, "by an operator", aside}, {2, "new member", aside}, {3, "stale restart", watch}, {4, "registration expired", watch},
		{5, "etcd restored from a backup", watch}, {6, "state file corrupt", watch}, {7, "mode unreadable", watch}, {8, "other", watch}, {9, "unknown data", watch}, {10, "data missing", watch}, {11, "record unreadable", watch}}}
)

// States of what is 0 or 1.
var (
	ready      = []state{{0, "kept away", bad}, {1, "ready", good}}
	up         = []state{{0, "down", bad}, {1, "up", good}}
	startup    = []state{{0, "under way", watch}, {1, "over", good}}
	registered = []state{{0, "gone", bad}, {1, "registered", good}}
	standby    = []state{{0, "none", blank}, {1, "stands by", good}}
	paused     = []state{{0, "on", good}, {1, "paused", aside}}
	holds      = []state{{0, "clear", good}, {1, "keeps clients away", bad}}
	zombie     = []state{{0, "clear", good}, {1, "zombie", bad}}
	answers    = []state{{0, "no good answer", bad}, {1, "answers", good}}
	attention  = []state{{0, "clear", good}, {1, "look", watch}}
	applied    = []state{{0, "refused", bad}, {1, "in force", good}}
	shadow     = []state{{0, "acts", good}, {1, "pretends", aside}}
)

func ptr[T any](v T) *T { return &v }
