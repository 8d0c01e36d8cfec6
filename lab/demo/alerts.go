package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
)

const (
	// faster makes five minutes of a rule five seconds.
	faster      = 60
	scrapeEvery = 250 * time.Millisecond
	// alertBound is generous: an alert is waited for by its event, whatever the machine.
	alertBound = time.Minute
)

// startAlerts starts a Prometheus with the rules of alerts/ that scrapes the sidecars.
func (s *stage) startAlerts(ctx context.Context) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	s.prom, err = prom.Start(ctx, prom.Config{
		Rules:          []string{filepath.Join(root, "alerts", "holdfast.rules.yaml")},
		ScrapeInterval: scrapeEvery,
		Faster:         faster,
	})
	if err != nil {
		return err
	}
	for _, n := range s.nodes {
		address := strings.TrimPrefix(n.sidecar.WebURL(), "http://")
		if err := s.prom.Target("holdfast", address, map[string]string{"instance": n.id}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, alertBound)
	defer cancel()
	if err := s.prom.AwaitScrape(ctx); err != nil {
		return err
	}
	// Before it had seen anything, it said so.
	if _, err := s.prom.AwaitAlert(ctx, "HoldfastAbsent", prom.Inactive); err != nil {
		return err
	}
	s.say("Prometheus scrapes them every %v, with the rules of alerts/ %d times as fast: 5m of a rule is %v here", scrapeEvery, faster, 5*time.Minute/faster)
	return nil
}

// tellAlerts prints each alert that fires or is resolved, until ctx ends.
func (s *stage) tellAlerts(ctx context.Context) {
	seen, news := s.prom.Changes()
	s.told.Store(int64(len(seen)))
	for {
		select {
		case <-news:
		case <-ctx.Done():
			return
		}
		var all []prom.Change
		all, news = s.prom.Changes()
		for _, c := range all[s.told.Load():] {
			s.tell(c)
		}
		s.told.Store(int64(len(all)))
	}
}

// toldAll waits until what happened before now is told, so that what is said next does not
// come before it.
func (s *stage) toldAll(ctx context.Context) error {
	all, _ := s.prom.Changes()
	return harness.Await(ctx, alertBound, "the alerts to be told", func(context.Context) (bool, string) {
		told := s.told.Load()
		return told >= int64(len(all)), fmt.Sprintf("%d of %d", told, len(all))
	})
}

// tell prints one change in a line, and while somebody plays by hand what to do.
func (s *stage) tell(c prom.Change) {
	if c.Alert.Name == "HoldfastLoopStuck" {
		return // scraped more often than it runs, a loop looks stuck when it has just begun
	}
	switch {
	case c.Alert.State == prom.Firing:
		s.say("  ALERT %s%s (%s)", c.Alert.Name, on(c.Alert), c.Alert.Labels["severity"])
		if s.byHand.Load() {
			s.say("        %s", c.Alert.Annotations["description"])
			s.say("        what to do: %s", runbook(c.Alert.Name))
		}
	case c.From == prom.Firing:
		s.say("  resolved: %s%s", c.Alert.Name, on(c.Alert))
	}
}

func on(a prom.Alert) string {
	if i := a.Labels["instance"]; i != "" {
		return " on " + i
	}
	return ""
}

// runbook is where the page about an alert is, below the root of the repository.
func runbook(alert string) string { return filepath.Join("alerts", "runbooks", alert+".md") }

// alerted waits for an alert about a node, and shows what an operator is told.
func (s *stage) alerted(ctx context.Context, t *trial, fault time.Time, name string, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, alertBound)
	defer cancel()
	c, err := s.prom.AwaitChange(ctx, fault, name, prom.Firing, "instance="+n.id)
	if err != nil {
		return err
	}
	if err := s.toldAll(ctx); err != nil {
		return err
	}
	after := c.At.Sub(fault).Seconds()
	s.say("%s fired %.1f s after the fault: %s", name, after, c.Alert.Annotations["description"])
	s.say("what to do, in words: %s", runbook(name))
	t.saw("alert %s after %.1f s", name, after)
	return nil
}

// resolved waits until the alert about a node is over.
func (s *stage) resolved(ctx context.Context, t *trial, repaired time.Time, name string, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, alertBound)
	defer cancel()
	if _, err := s.prom.AwaitAlert(ctx, name, prom.Inactive, "instance="+n.id); err != nil {
		return err
	}
	after := time.Since(repaired).Seconds()
	if err := s.toldAll(ctx); err != nil {
		return err
	}
	s.say("%s is resolved, %.1f s after the repair", name, after)
	t.saw("resolved after %.1f s", after)
	return nil
}

// stillFiring says which alerts a Prometheus at its usual pace would show for a while.
func (s *stage) stillFiring() string {
	var names []string
	for _, a := range s.prom.Alerts() {
		if a.State == prom.Firing {
			names = append(names, a.Name+on(a))
		}
	}
	if len(names) == 0 {
		return "No alert fires any more."
	}
	return fmt.Sprintf("Still firing, as they look back for minutes: %s.", strings.Join(names, ", "))
}
