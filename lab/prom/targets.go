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
	"go.yaml.in/yaml/v3"
)

// Job says how a job is scraped: the keys of a scrape_config of Prometheus'
// configuration besides job_name and the discovery, as YAML.
type Job struct {
	Name   string
	Config string
}

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
	known := slices.ContainsFunc(p.jobs, func(j Job) bool { return j.Name == job })
	jobs := append(slices.Clone(p.jobs), Job{Name: job})
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
func (p *Prometheus) configure(jobs []Job) error {
	configs := []map[string]any{}
	for _, j := range jobs {
		c := map[string]any{}
		if err := yaml.Unmarshal([]byte(j.Config), &c); err != nil {
			return fmt.Errorf("read scrape config of job %s: %w", j.Name, err)
		}
		c["job_name"] = j.Name
		configs = append(configs, c)
	}
	text, err := yaml.Marshal(map[string]any{
		"global": map[string]any{
			"scrape_interval": p.config.ScrapeInterval.String(),
			"scrape_timeout":  p.config.ScrapeInterval.String(),
		},
		"scrape_configs": configs,
	})
	if err != nil {
		return fmt.Errorf("write prometheus configuration: %w", err)
	}
	c, err := promconfig.Load(string(text), p.config.Log)
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
		sets[j.Name] = nil // one that lost its last target too
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
