package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
)

// Check tries valid settings against the world and writes no key of etcd, and nothing to the
// broker. Each part is bounded by three seconds, each of its questions where
// one rests on another.
func Check(ctx context.Context, c config.Config, log *slog.Logger) []check.Finding {
	c = c.Effective()
	id, broker := checkBroker(ctx, c, log)
	if c.BrokerID == "" {
		c.BrokerID = id.Name
	}
	if c.DataDir == "" {
		c.DataDir = id.DataDir
	}
	registered := c.BrokerID
	if c.Traits().Registers {
		registered = id.Instance
	}
	findings := []check.Finding{check.Unleased(c)}
	if !c.Unleased() {
		findings = check.Etcd(ctx, c, registered, log)
	}
	findings = append(findings, broker)
	if c.DataDir != "" || broker.Err == nil {
		findings = append(findings, checkDataDir(c, id.DataDir))
	}
	findings = append(findings, check.StateDir(c))
	if f, untried := check.User(c, log); untried {
		findings = append(findings, f)
	}
	if !c.Unleased() && findings[0].Err == nil && !control.IsUsage(broker.Err) {
		findings = append(findings, checkStart(ctx, c, id, broker.Err == nil, log))
	}
	if f, ok := check.Web(c); ok {
		findings = append(findings, f)
	}
	for _, w := range c.Warnings() {
		findings = append(findings, check.Finding{What: "settings", Warn: true, Text: w})
	}
	if c.Traits().AtDeadline == brokerapi.Stop && !c.Shadow {
		findings = append(findings, checkMustStop(c, c.Traits()))
	}
	if f, so := check.FencesItself(c); so && !c.Shadow {
		findings = append(findings, f)
	}
	if c.Failover == "move" && c.Traits().LocalData {
		findings = append(findings, check.Finding{What: "failover", Warn: true, Text: movesWithoutData})
	}
	for _, n := range id.Notes {
		findings = append(findings, check.Finding{What: n.Kind, Warn: true, Text: n.Text})
	}
	unstoppable, unseen := false, "; in a pod, set shareProcessNamespace: true"
	if c.CanStop() {
		f := check.Process(c, log)
		if f.Err == nil && broker.Err == nil {
			f = check.Recognized(ctx, c, f, id)
		}
		findings = append(findings, f)
		var exit *control.ExitError
		foreign := errors.As(f.Err, &exit) && exit.Code == control.ExitRefused
		unstoppable = foreign || f.Err != nil && broker.Err == nil && c.StopCommand == ""
		if errors.Is(f.Err, unix.EPERM) {
			unstoppable, unseen = true, ""
		}
	}
	switch {
	case c.Shadow, c.Unleased():
	case c.Guard == "on" && unstoppable:
		findings = append(findings, check.Finding{What: "guard", Warn: true, Text: "would stop nothing: see process" + unseen})
	case c.Guard == "on":
		findings = append(findings, check.Guard(c))
	default:
		findings = append(findings, check.Unguarded(c))
	}
	for _, u := range check.WorstCase(c).Unsafe {
		findings = append(findings, check.Finding{What: "timing", Err: control.Refused("%s", u)})
	}
	return findings
}

// openBroker makes the driver, with a store of its own to read from.
func openBroker(c config.Config, log *slog.Logger) (b brokerapi.Broker, closeAll func(), err error) {
	d, ok := config.Drivers[c.Driver]
	if !ok {
		return nil, nil, fmt.Errorf("--driver %q: unknown driver: known drivers: %s", c.Driver, strings.Join(config.DriverNames(), ", "))
	}
	var store *cluster.Client
	closeStore := func() error { return nil }
	if !c.Unleased() {
		if store, err = cluster.Open(c.Cluster(), log); err != nil {
			return nil, nil, err
		}
		closeStore = store.Close
	}
	if b, err = d.New(c, store, log); err != nil {
		return nil, nil, errors.Join(err, closeStore())
	}
	return b, func() { b.Close(); closeStore() }, nil
}

func checkBroker(ctx context.Context, c config.Config, log *slog.Logger) (brokerapi.Report, check.Finding) {
	f := check.Finding{What: "broker"}
	b, closeBroker, err := openBroker(c, log)
	if err != nil {
		f.Err = control.UsageError(err)
		return brokerapi.Report{}, f
	}
	defer closeBroker()
	ctx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	id, err := b.Probe(ctx)
	for err == nil && errors.Is(id.Unable, brokerapi.ErrUntried) && ctx.Err() == nil {
		probes.Sleep(ctx, 100*time.Millisecond)
		id, err = b.Probe(ctx)
	}
	switch {
	case errors.Is(err, brokerapi.ErrIdentity), errors.Is(err, brokerapi.ErrLogin):
		f.Err = control.UsageError(err)
		return id, f
	case err != nil && id.Instance == "":
		f.Err = fmt.Errorf("broker: %w", err)
		return id, f
	}
	name, flaw := newIdentityCheck(b, c, "").name(id)
	if flaw != nil {
		f.Err = control.UsageError(flaw)
		id.Name = "" // nothing may be looked for under it
		return id, f
	}
	f.Text = fmt.Sprintf("%s %s %s", name, c.Driver, id.Version)
	if _, ok := b.(brokerapi.ModeSetter); ok {
		f.Text += "; can: steer"
	}
	if has := c.Traits().List(); len(has) > 0 {
		f.Text += "; has: " + strings.Join(has, ", ")
	}
	if err == nil && c.Traits().LocalData {
		if held, unlisted := b.Topics(ctx); unlisted == nil && len(held.Foreign) > 0 {
			f.Warn = true
			f.Text += fmt.Sprintf("; no topics of Holdfast, so neither fenced nor drained (%d): %.200s", len(held.Foreign), strings.Join(held.Foreign, ", "))
		}
	}
	if err = cmp.Or(err, id.Unable); err != nil {
		f.Err = fmt.Errorf("broker %s: not healthy: %w", name, err)
		if errors.Is(err, brokerapi.ErrLogin) {
			f.Err = control.UsageError(f.Err)
		}
	}
	return id, f
}

func checkDataDir(c config.Config, stated string) check.Finding {
	f := check.Finding{What: "data dir", Text: c.DataDir}
	if c.DataDir == "" {
		f.Text = "not known: the broker does not state it; give --data-dir to tell a first boot from a restart"
		return f
	}
	if err := probes.CheckReadable(c.DataDir); err != nil {
		f.Err = control.UsageError(err)
	} else if text := elsewhere(c.DataDir, stated); text != "" {
		f.Warn, f.Text = true, text
	} else if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		f.Warn = true
		f.Text += "; not there: if the broker has data elsewhere, a restart is taken for a first boot; give the directory that it uses"
	}
	return f
}
