package prom

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/rules"
)

// State is what an alert is in.
type State string

// Inactive is an alert that is not there, or no more: it was resolved.
const (
	Inactive State = "inactive"
	Pending  State = "pending"
	Firing   State = "firing"
)

// Alert is one series that an alerting rule found.
type Alert struct {
	Name        string
	State       State
	Labels      map[string]string // the alert's, alertname and severity among them
	Annotations map[string]string // expanded
	Value       float64           // of the expression at the last evaluation
	ActiveAt    time.Time         // since when the expression holds
}

func (a Alert) String() string {
	var l []string
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		if name != "alertname" {
			l = append(l, name+"="+a.Labels[name])
		}
	}
	return fmt.Sprintf("%s{%s} %s", a.Name, strings.Join(l, ", "), a.State)
}

// Matches says whether each matcher, label=value, holds.
func (a Alert) Matches(matchers []string) bool {
	return !slices.ContainsFunc(matchers, func(m string) bool {
		name, value, _ := strings.Cut(m, "=")
		return a.Labels[name] != value
	})
}

// Change is an alert that went from one state into another, as it is after it. One that
// was resolved has State Inactive and the labels and annotations it had last.
type Change struct {
	At    time.Time
	From  State
	Alert Alert
}

func (c Change) String() string {
	return fmt.Sprintf("%s %s, was %s", c.At.Format("15:04:05.000"), c.Alert, c.From)
}

// alertLog knows the alerts there are, and every change so far.
type alertLog struct {
	mu      *sync.Mutex
	groups  map[string]map[string]Alert // by group, by rule and labels
	changes []Change
	news    chan struct{} // closed and made anew at every evaluation
}

func newAlertLog() alertLog {
	return alertLog{mu: &sync.Mutex{}, groups: map[string]map[string]Alert{}, news: make(chan struct{})}
}

// take takes down what the alerts of a group are after an evaluation.
func (l *alertLog) take(now time.Time, g *rules.Group) {
	after := map[string]Alert{}
	for i, r := range g.Rules() { // g.AlertingRules are in the order of their states
		rule, ok := r.(*rules.AlertingRule)
		if !ok {
			continue
		}
		for _, a := range rule.ActiveAlerts() {
			after[fmt.Sprint(i, a.Labels)] = Alert{
				Name: rule.Name(), State: State(a.State.String()),
				Labels: a.Labels.Map(), Annotations: a.Annotations.Map(), Value: a.Value, ActiveAt: a.ActiveAt,
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := rules.GroupKey(g.File(), g.Name())
	before := l.groups[key]
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[id]; !ok {
			gone := before[id]
			gone.State = Inactive
			l.changes = append(l.changes, Change{At: now, From: before[id].State, Alert: gone})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(after)) {
		from := Inactive
		if old, ok := before[id]; ok {
			from = old.State
		}
		if from != after[id].State {
			l.changes = append(l.changes, Change{At: now, From: from, Alert: after[id]})
		}
	}
	l.groups[key] = after
	close(l.news)
	l.news = make(chan struct{})
}

// Alerts are those that are pending or firing now, by name.
func (p *Prometheus) Alerts() []Alert {
	all, _ := p.alerts.present()
	return all
}

// Changes are all that there were until now, in the order in which they were seen.
// The channel is closed when rules were evaluated after that.
func (p *Prometheus) Changes() ([]Change, <-chan struct{}) {
	p.alerts.mu.Lock()
	defer p.alerts.mu.Unlock()
	return slices.Clone(p.alerts.changes), p.alerts.news
}

func (l *alertLog) present() ([]Alert, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Alert
	for _, alerts := range l.groups {
		all = slices.AppendSeq(all, maps.Values(alerts))
	}
	slices.SortFunc(all, func(a, b Alert) int { return strings.Compare(a.String(), b.String()) })
	return all, l.news
}

// AwaitAlert returns when an alert of that name whose labels match each label=value is
// in the state, with Inactive: when there is none any more. The error holds all alerts
// there are, and rules that cannot be evaluated.
func (p *Prometheus) AwaitAlert(ctx context.Context, name string, state State, matchers ...string) (Alert, error) {
	for {
		all, news := p.alerts.present()
		mine := slices.DeleteFunc(slices.Clone(all), func(a Alert) bool { return a.Name != name || !a.Matches(matchers) })
		if state == Inactive && len(mine) == 0 {
			return Alert{Name: name, State: Inactive}, nil
		}
		for _, a := range mine {
			if a.State == state {
				return a, nil
			}
		}
		select {
		case <-news:
		case <-p.ended.Done():
			return Alert{}, fmt.Errorf("wait for alert %s to be %s: prometheus is closed", name, state)
		case <-ctx.Done():
			return Alert{}, errors.Join(fmt.Errorf("wait for alert %s%q to be %s: %w; there are %v", name, matchers, state, ctx.Err(), all), p.RuleErrors())
		}
	}
}

// AwaitChange returns the first change into the state since a moment, also if it is
// past; matchers as for AwaitAlert.
func (p *Prometheus) AwaitChange(ctx context.Context, since time.Time, name string, state State, matchers ...string) (Change, error) {
	for {
		changes, news := p.Changes()
		for _, c := range changes {
			if !c.At.Before(since) && c.Alert.Name == name && c.Alert.State == state && c.Alert.Matches(matchers) {
				return c, nil
			}
		}
		select {
		case <-news:
		case <-p.ended.Done():
			return Change{}, fmt.Errorf("wait for alert %s to become %s: prometheus is closed", name, state)
		case <-ctx.Done():
			return Change{}, errors.Join(fmt.Errorf("wait for alert %s%q to become %s: %w; there are %v", name, matchers, state, ctx.Err(), p.Alerts()), p.RuleErrors())
		}
	}
}

// RuleErrors joins the errors of rules whose last evaluation failed.
func (p *Prometheus) RuleErrors() error {
	var errs []error
	for _, g := range p.rules.RuleGroups() {
		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				errs = append(errs, fmt.Errorf("rule %s: %w", r.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}
