package e2e

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
	"holdfast/standstill"
)

const (
	alertRules = "../../alerts/holdfast.rules.yaml"
	alertJob   = "holdfast"
	// alertFaster makes 5m of a rule 5 s, beside leases of 5 s.
	alertFaster = 60
	alertScrape = 250 * time.Millisecond
	// alertBound is no claim: it ends a wait for an alert that does not come.
	alertBound = 90 * time.Second
)

// watched is what is scraped: a stage, and the Prometheus that watches its brokers.
type watched struct {
	*stage
	prom *prom.Prometheus

	places *sync.Map // harness.Place by address
	shared bool      // several lanes are played on this etcd
}

// watched starts a Prometheus with the rules beside a stage.
func (s *stage) watched(faster float64, scrape time.Duration) *watched {
	s.t.Helper()
	w := &watched{stage: s, places: &sync.Map{}}
	rules, err := filepath.Abs(alertRules)
	s.must(err)
	w.prom, err = prom.Start(s.ctx, prom.Config{
		Rules: []string{rules}, ScrapeInterval: scrape, Faster: faster,
		// A sidecar in a network namespace is reached from inside it.
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			place, _ := w.places.Load(address)
			in, _ := place.(harness.Place)
			return in.DialContext(ctx, network, address)
		},
	})
	s.must(err)
	s.t.Cleanup(func() {
		changes, _ := w.prom.Changes()
		for _, c := range changes {
			if c.Alert.State == prom.Firing || c.From == prom.Firing {
				s.t.Log(c)
			}
		}
		s.should(w.prom.RuleErrors())
		s.should(w.prom.Close())
	})
	return w
}

// scrape has a sidecar scraped, as one of a cluster.
func (w *watched) scrape(cluster string, n *node) {
	w.t.Helper()
	address := scrapeAddress(n.sidecar)
	w.places.Store(address, n.sidecar.Place)
	w.must(w.prom.Target(alertJob, address, map[string]string{"cluster": cluster, "instance": n.id}))
}

func scrapeAddress(s *harness.Sidecar) string { return strings.TrimPrefix(s.WebURL(), "http://") }

// forget has a sidecar that was taken away for good scraped no more.
func (w *watched) forget(n *node) {
	w.t.Helper()
	w.must(w.prom.Forget(alertJob, scrapeAddress(n.sidecar)))
}

// under is the same for a test below, which fails by itself.
func (w *watched) under(t *testing.T) *watched {
	s, c := *w.stage, *w
	s.t, s.ctx = t, t.Context()
	c.stage = &s
	return &c
}

// is waits until an alert of a cluster is in the state.
func (w *watched) is(state prom.State, alert string, matchers ...string) prom.Alert {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, alertBound)
	defer cancel()
	a, err := w.prom.AwaitAlert(ctx, alert, state, matchers...)
	w.must(err)
	return a
}

// firing are the alerts that fire now, by their labels.
func (w *watched) firing(matchers ...string) []prom.Alert {
	return slices.DeleteFunc(w.prom.Alerts(), func(a prom.Alert) bool { return a.State != prom.Firing || !a.Matches(matchers) })
}

func isNamed(name string) func(prom.Alert) bool {
	return func(a prom.Alert) bool { return a.Name == name }
}

// fault is one way in which things go wrong, and the alerts that are named for it.
type fault struct {
	what   string   // is done
	alerts []string // that fire
	on     string   // the instance that they name; empty: they are a fleet's
	wide   bool     // they do not even name a cluster
	never  []string // alerts that must not fire in the lane meanwhile
	repair string
	play   func(l *lane) // nil: what was played before has this consequence too
	mend   func(l *lane) // nil: it passes by itself
	// nearest says why a fault is not played for real, and what is played instead.
	nearest string
}

// lane is a fleet of its own, with a cluster label of its own, to which things happen
// one after the other.
type lane struct {
	*watched
	name     string
	n, other *node
	all      []*node
	front    *harness.Front
	mangler  *harness.Mangler
	undo     func()
	longest  time.Duration // of the restarts that were played
}

type laneOf struct {
	name    string
	prepare func(l *lane)
	faults  []fault
}

// play plays the faults of a lane in their order.
func (o laneOf) play(t *testing.T, w *watched) {
	l := &lane{watched: w.under(t), name: o.name}
	o.prepare(l)
	for _, f := range o.faults {
		l.suffers(f)
	}
	// In the end nothing is left of it all.
	for {
		left := l.firing("cluster=" + l.name)
		if len(left) == 0 {
			return
		}
		l.is(prom.Inactive, left[0].Name, "cluster="+l.name)
	}
}

// suffers plays a fault and waits for its alerts, mends it and waits for their end.
func (l *lane) suffers(f fault) {
	l.t.Helper()
	labels := []string{"cluster=" + l.name}
	if f.on != "" {
		labels = append(labels, "instance="+f.on)
	}
	if f.wide {
		labels = nil
	}
	began := time.Now()
	if f.play != nil {
		for _, name := range f.alerts {
			l.is(prom.Inactive, name, labels...)
		}
		began = time.Now()
		l.t.Logf("%s", f.what)
		f.play(l)
	}
	for _, name := range f.alerts {
		a := l.is(prom.Firing, name, labels...)
		l.t.Logf("%s after %.1f s: %s", name, time.Since(began).Seconds(), a.Annotations["description"])
	}
	mended := time.Now()
	l.t.Logf("%s", f.repair)
	if f.mend != nil {
		f.mend(l)
	}
	for _, name := range f.alerts {
		l.is(prom.Inactive, name, labels...)
		l.t.Logf("%s resolved after %.1f s", name, time.Since(mended).Seconds())
	}
	changes, _ := l.prom.Changes()
	for _, c := range changes {
		if c.At.After(began) && c.Alert.State == prom.Firing && c.Alert.Labels["cluster"] == l.name && slices.Contains(f.never, c.Alert.Name) {
			standstill.Check(l.t, l.slowRestarts(c))
			l.t.Errorf("by the fault %q fired %v, which must not", f.what, c)
		}
	}
}
