// Package prom runs a real Prometheus inside a test or the demo: the scrape manager
// over real HTTP, the time series database in a temporary directory, the rule manager
// and the query engine of github.com/prometheus/prometheus.
//
// Guaranteed: rules files are loaded by Prometheus' own loader and evaluated by its own
// rule manager; what the scrapes, the staleness of vanished series and targets, `for`
// and `keep_firing_for` do is what Prometheus does. With Config.Faster every duration
// in the rules is divided, see Faster, so that what takes minutes is seen in seconds.
// After Close nothing runs any more and the directory is gone.
//
// Not guaranteed: anything about thresholds. A number in a rule that means seconds stays
// what it is, however fast the durations are, unless an age is compared with it. There is
// no service discovery and no Alertmanager: alerts are told by their states, uninhibited.
package prom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	promcfg "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
)

// Config says what is scraped how often, and which rules are evaluated. The zero value
// scrapes and evaluates every second, and has no rules.
type Config struct {
	Rules          []string      // files
	ScrapeInterval time.Duration // default 1s; it is also the timeout of a scrape
	EvalInterval   time.Duration // of groups that do not say; default ScrapeInterval; not divided
	Faster         float64       // what durations in rules are divided by; default 1
	// FasterFor is that for single rules, by name: some are about what has a pace of its
	// own, which does not become faster.
	FasterFor map[string]float64
	// Dial connects to targets, for those that are not reached from here. Default: plain.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger // of Prometheus; default: nowhere
}

func (c Config) withDefaults() Config {
	if c.ScrapeInterval == 0 {
		c.ScrapeInterval = time.Second
	}
	if c.EvalInterval == 0 {
		c.EvalInterval = c.ScrapeInterval
	}
	if c.Faster == 0 {
		c.Faster = 1
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// lookback is how long the last sample of a series counts: Prometheus' five minutes,
// divided as the rules are, but never so short that a scrape that is late makes a gap.
func (c Config) lookback() time.Duration {
	const standard = 5 * time.Minute
	return max(divided(standard, c.Faster), 5*c.ScrapeInterval)
}

// Prometheus is a running one. Close it. It is safe for concurrent use.
type Prometheus struct {
	config Config
	dir    string
	db     *tsdb.DB
	engine *promql.Engine
	scrape *scrape.Manager
	rules  *rules.Manager
	sets   chan map[string][]*targetgroup.Group
	end    context.CancelFunc
	wg     sync.WaitGroup
	ended  context.Context

	closing sync.Once
	closed  error

	mu      sync.Mutex
	targets map[target]model.LabelSet
	jobs    []string // those of the present configuration

	alerts alertLog
}

// Start starts it. ctx bounds the start; Close ends the rest.
func Start(ctx context.Context, c Config) (_ *Prometheus, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start prometheus: %w", err)
	}
	p := &Prometheus{
		config:  c.withDefaults(),
		sets:    make(chan map[string][]*targetgroup.Group),
		targets: map[target]model.LabelSet{},
		alerts:  newAlertLog(),
	}
	p.ended, p.end = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start prometheus: %w", err), p.Close())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "hf-prom-"); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	if err := p.startScraping(); err != nil {
		return nil, err
	}
	return p, p.startRules()
}

// open opens the database and makes the engine.
func (p *Prometheus) open() (err error) {
	o := tsdb.DefaultOptions()
	o.WALSegmentSize = -1 // nothing is to survive
	o.NoLockfile = true
	o.StripeSize = 1 << 8
	if p.db, err = tsdb.Open(filepath.Join(p.dir, "data"), p.config.Log, nil, o, nil); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	p.engine = promql.NewEngine(promql.EngineOpts{
		Logger:        p.config.Log,
		MaxSamples:    50_000_000,
		Timeout:       time.Minute,
		LookbackDelta: p.config.lookback(),
		NoStepSubqueryIntervalFn: func(int64) int64 {
			return p.config.EvalInterval.Milliseconds()
		},
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
	})
	return nil
}

// startScraping starts the scrape manager, which has no targets yet.
func (p *Prometheus) startScraping() (err error) {
	o := &scrape.Options{DiscoveryReloadInterval: model.Duration(50 * time.Millisecond)}
	if p.config.Dial != nil {
		o.HTTPClientOptions = append(o.HTTPClientOptions, promcfg.WithDialContextFunc(p.config.Dial))
	}
	if p.scrape, err = scrape.NewManager(o, p.config.Log, nil, nil, p.db, noMetrics()); err != nil {
		return fmt.Errorf("make scrape manager: %w", err)
	}
	if err := p.configure(nil); err != nil {
		return err
	}
	p.wg.Go(func() { p.scrape.Run(p.sets) })
	return nil
}

// startRules loads the rules and starts to evaluate them.
func (p *Prometheus) startRules() error {
	p.rules = rules.NewManager(&rules.ManagerOptions{
		QueryFunc:   rules.EngineQueryFunc(p.engine, p.db),
		NotifyFunc:  func(context.Context, string, ...*rules.Alert) {},
		Context:     p.ended,
		Appendable:  p.db,
		Queryable:   p.db,
		Logger:      p.config.Log,
		Registerer:  noMetrics(),
		GroupLoader: fasterLoader{by: p.config.Faster, of: p.config.FasterFor},
	})
	// LoadGroups tells what is wrong with a file, Update only that something is.
	if _, errs := p.rules.LoadGroups(p.config.EvalInterval, noLabels, "", nil, false, p.config.Rules...); len(errs) > 0 {
		return fmt.Errorf("load rules: %w", errors.Join(errs...))
	}
	if err := p.rules.Update(p.config.EvalInterval, p.config.Rules, noLabels, "", p.evaluate); err != nil {
		return fmt.Errorf("load rules: %w", err)
	}
	p.wg.Go(p.rules.Run)
	return nil
}

// evaluate evaluates one group, and takes down which alerts changed.
func (p *Prometheus) evaluate(ctx context.Context, g *rules.Group, at time.Time) {
	rules.DefaultEvalIterationFunc(ctx, g, at)
	p.alerts.take(time.Now(), g)
}

// Close ends everything and removes the data. It may be called again.
func (p *Prometheus) Close() error {
	p.closing.Do(func() {
		p.end()
		if p.rules != nil {
			p.rules.Stop()
		}
		if p.scrape != nil {
			p.scrape.Stop()
		}
		p.wg.Wait()
		var err error
		if p.db != nil {
			err = p.db.Close()
		}
		p.closed = errors.Join(err, os.RemoveAll(p.dir))
	})
	return p.closed
}
