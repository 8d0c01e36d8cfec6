package prom

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	promconfig "github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
)

// target is what tells targets apart.
type target struct{ job, address string }

var noLabels = labels.EmptyLabels()

// noMetrics is where Prometheus' own metrics go: nobody asks for them.
func noMetrics() prometheus.Registerer { return prometheus.NewRegistry() }

// Target has the address (host:port) scraped from now on, with these labels besides
// job and instance; instance is the address unless it is among the labels.
func (p *Prometheus) Target(job, address string, l map[string]string) error {
	set := model.LabelSet{}
	for name, value := range l {
		set[model.LabelName(name)] = model.LabelValue(value)
	}
	p.mu.Lock()
	known := slices.Contains(p.jobs, job)
	jobs := append(slices.Clone(p.jobs), job)
	p.targets[target{job, address}] = set
	p.mu.Unlock()
	if !known {
		if err := p.configure(jobs); err != nil {
			return err
		}
	}
	return p.discover()
}

// Forget has the address scraped no more, as if the discovery had lost it.
func (p *Prometheus) Forget(job, address string) error {
	p.mu.Lock()
	delete(p.targets, target{job, address})
	p.mu.Unlock()
	return p.discover()
}

// configure gives the scrape manager a configuration with these jobs.
func (p *Prometheus) configure(jobs []string) error {
	text := fmt.Sprintf("global: {scrape_interval: %[1]v, scrape_timeout: %[1]v}\nscrape_configs:\n", p.config.ScrapeInterval)
	for _, j := range jobs {
		text += fmt.Sprintf("  - job_name: %q\n", j)
	}
	c, err := promconfig.Load(text, p.config.Log)
	if err != nil {
		return fmt.Errorf("load prometheus configuration: %w", err)
	}
	if err := p.scrape.ApplyConfig(c); err != nil {
		return fmt.Errorf("apply prometheus configuration: %w", err)
	}
	p.mu.Lock()
	p.jobs = jobs
	p.mu.Unlock()
	return nil
}

// discover tells the scrape manager all targets there are.
func (p *Prometheus) discover() error {
	p.mu.Lock()
	sets := map[string][]*targetgroup.Group{}
	for _, j := range p.jobs {
		sets[j] = nil // one that lost its last target too
	}
	for t, set := range p.targets {
		set = maps.Clone(set)
		set[model.AddressLabel] = model.LabelValue(t.address)
		sets[t.job] = append(sets[t.job], &targetgroup.Group{
			Source:  t.address,
			Targets: []model.LabelSet{set},
		})
	}
	p.mu.Unlock()
	select {
	case p.sets <- sets:
		return nil
	case <-p.ended.Done():
		return errors.New("give prometheus its targets: it is closed")
	}
}

// AwaitScrape returns when every target was scraped, with success, later than now.
// The error names those that were not.
func (p *Prometheus) AwaitScrape(ctx context.Context) error {
	since := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := p.unscraped(since)
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for a scrape of every target: %w: %s", ctx.Err(), strings.Join(missing, "; "))
		}
	}
}

// unscraped are the targets without a good scrape that began after since.
func (p *Prometheus) unscraped(since time.Time) (missing []string) {
	p.mu.Lock()
	all := maps.Clone(p.targets)
	p.mu.Unlock()
	for _, active := range p.scrape.TargetsActive() {
		for _, t := range active {
			if t.Health() == scrape.HealthGood && t.LastScrape().After(since) {
				delete(all, target{t.GetValue(model.JobLabel), t.URL().Host})
			}
		}
	}
	for t := range all {
		why := "not yet"
		for _, active := range p.scrape.TargetsActive()[t.job] {
			if err := active.LastError(); err != nil && active.URL().Host == t.address {
				why = err.Error()
			}
		}
		missing = append(missing, fmt.Sprintf("%s of %s: %s", t.address, t.job, why))
	}
	return missing
}
