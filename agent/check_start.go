package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/agent/process"
	"holdfast/agent/recognize"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
	"holdfast/recovery"
)

// A start is foretold by the registrar itself: the same reads, the same tables, and nothing
// written. What a broker that does not answer cannot tell is assumed, and said so.

// start is the start of a sidecar that is not made.
type start struct {
	cfg        config.Config
	name       string // of the broker
	memory     memory
	instance   string // of the broker's process; empty: it does not answer
	boot       recovery.BootFacts
	data       recovery.DataID // see life
	localData  bool            // it is on this broker only
	byInstance bool
	before     note.Confirmed // see registrar
	moved      bool           // the state directory is not where it was
	clock      func() lease.Instant
	serves     func(*listing) // nil: it is not asked
	assumed    []string
}

// checkStart says what a start would decide now, or what the sidecar holds that runs.
func checkStart(ctx context.Context, c config.Config, who brokerapi.Report, healthy bool, log *slog.Logger) check.Finding {
	f := check.Finding{What: "start"}
	ctx, cancel := context.WithTimeout(ctx, check.Timeout+recovery.LooksApart(c.RenewInterval))
	defer cancel()
	t := c.Traits()
	if text, id, runs := heldNow(ctx, c); runs {
		f.Text = text
		switch name := cmp.Or(c.BrokerID, who.Name); {
		case t.Registers || id == "":
		case name != "" && name != id:
			f.Err = control.UsageError(fmt.Errorf("--state-dir %s: it is that of broker %s, and the broker here is %s: give its own", c.StateDir, id, name))
		case c.Registration == "own":
			f.Err = deniedNow(ctx, c, id, log)
		}
		return f
	}
	s := start{cfg: c, clock: lease.BootClock, instance: who.Instance, byInstance: t.Registers, localData: t.LocalData}
	var err error
	if s.memory, _, err = readMemory(c.StateDir); err != nil {
		f.Err = control.UsageError(err)
		return f
	}
	if c.Shadow { // what was only supposed is no past
		s.memory = memory{Format: memoryFormat, Incarnation: randomID()}
	}
	s.moved = s.memory.movedTo((&stateDir{path: c.StateDir}).place())
	s.memory.keptIn("")
	if s.memory.Epoch != 0 {
		s.before = note.Read(c.StateDir)
		s.memory.was(s.before)
	}
	if s.name = cmp.Or(c.BrokerID, who.Name, s.memory.BrokerID); s.name == "" {
		f.Text = "not foretold: the broker does not answer, and its id is not known: give --broker-id"
		return f
	}
	s.observe(who, healthy)
	client, err := cluster.Open(c.Cluster(), log)
	if err != nil {
		f.Err = control.UsageError(err)
		return f
	}
	defer client.Close()
	if s.instance != "" && !t.Places {
		broker, closeBroker, err := openBroker(c, log)
		if err != nil {
			f.Err = control.UsageError(err)
			return f
		}
		defer closeBroker()
		s.serves = func(l *listing) {
			held, err := broker.Topics(ctx)
			l.serving, l.err = held.Serving, err
			close(l.done)
		}
	}
	return s.foretell(ctx, client, log)
}

// deniedNow is the right that etcd would deny to the next start; nil: none.
func deniedNow(ctx context.Context, c config.Config, id string, log *slog.Logger) error {
	client, err := cluster.Open(c.Cluster(), log)
	if err != nil {
		return control.UsageError(err)
	}
	defer client.Close()
	seen, err := client.Snapshot(ctx, id)
	if err == nil {
		err = client.MayRegister(ctx, seen)
	}
	if !cluster.Denied(err) { // what else is wrong with etcd is another finding
		return nil
	}
	return control.EtcdError(c, err)
}

// heldNow is what a sidecar holds that runs beside this state directory, and its broker.
func heldNow(ctx context.Context, c config.Config) (text, id string, runs bool) {
	ctx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	var st control.Status
	_, err := control.NewClient(c.ControlSocket, c.StateDir).Get(ctx, "/v1/status", &st)
	pid := control.LockHolder(c.StateDir)
	switch {
	case err == nil:
		text = fmt.Sprintf("a sidecar runs: %s is %s", st.BrokerID, cmp.Or(st.Mode, "not decided yet"))
		if st.Reason != "" {
			text += " (" + st.Reason + ")"
		}
		if d := st.Decided; d != nil {
			text += fmt.Sprintf(", decided by %s: %s; otherwise: %s", d.Row, d.Why, d.Otherwise)
		}
		return text, st.BrokerID, true
	case pid != 0:
		return fmt.Sprintf("a sidecar runs (process %d) and does not say what it holds: %v", pid, err), "", true
	}
	return "", "", false
}

// observe gathers what this host shows of the broker.
func (s *start) observe(who brokerapi.Report, healthy bool) {
	started := who.StartedAt
	switch {
	case s.instance == "":
		started = time.Now()
		s.assumed = append(s.assumed, "the broker does not answer, and is started now")
		if s.cfg.DataDir == "" {
			s.assumed = append(s.assumed, "it has no older data, because --data-dir is not given")
		}
	case started.IsZero() && (s.cfg.BrokerPIDFile != "" || s.cfg.BrokerProcess != ""):
		if seen, err := recognize.Finder(s.cfg).Find(); err == nil {
			started = seen.StartedAt
		}
	}
	if s.instance != "" && !healthy {
		s.assumed = append(s.assumed, "the broker is healthy")
	}
	dir := probes.Scan(context.Background(), s.cfg.DataDir, s.cfg.DataMarkers, started)
	s.boot = bootFacts(started, dir)
	if s.localData {
		s.data = recovery.DataID(dir.Identity)
		if dir.State == probes.DirMissing {
			s.boot.DirGone = s.cfg.DataDir
		}
	}
}

// foretell has the registrar decide, and writes nothing.
func (s start) foretell(ctx context.Context, client *cluster.Client, log *slog.Logger) check.Finding {
	f := check.Finding{What: "start"}
	if s.byInstance && s.instance == "" {
		f.Text = "not foretold: the broker does not answer, and has another id at each start"
		return f
	}
	if left := s.memory.Left; left != nil && left.Instance == s.instance && left.rest(s.cfg) > 0 {
		f.Warn, f.Text = true, "would wait: "+left.waits(s.cfg)
		return f
	}
	r := registrar{cfg: s.cfg, run: randomID(), moved: s.moved, brokerID: s.name, byInstance: s.byInstance, log: log, clock: s.clock,
		life: func() life {
			return life{memory: s.memory, instance: s.instance, boot: s.boot, data: s.data, recalls: true}
		},
		paused: s.paused, pauseEnds: s.pauseEnds, serves: s.serves, before: s.before}
	seen, out, err := r.considered(ctx, client)
	switch {
	case errors.Is(err, lease.ErrDeferred):
		f.Warn, f.Text = true, "would wait: "+strings.TrimPrefix(err.Error(), lease.ErrDeferred.Error()+": ")
		return f
	case errors.Is(err, lease.ErrConflict): // with a living copy of the state directory
		f.Warn, f.Text = true, fmt.Sprintf("would wait, detached, decided by %s: %s; otherwise: %s",
			recovery.RowConflict, strings.TrimPrefix(err.Error(), lease.ErrConflict.Error()+": "), recovery.Otherwise(recovery.RowConflict))
		return f
	case err != nil:
		f.Err = control.EtcdError(s.cfg, err)
		return f
	}
	if err := client.MayRegister(ctx, seen); err != nil {
		f.Err = control.EtcdError(s.cfg, err)
		return f
	}
	d, why := out.decision, out.decision.Detail
	switch d.Step {
	case recovery.Conflict:
		f.Warn, f.Text, why = true, "would wait, detached", r.describeHolder(seen)
	case recovery.Shutdown:
		f.Warn, f.Text = true, "would stop the broker"
	default:
		f.Warn = d.Mode.Mode != recovery.Active && d.Mode.By == recovery.ByHoldfast
		f.Text = fmt.Sprintf("would be %s (%s)", d.Mode.Mode, d.Mode.Reason)
	}
	kind := "the process that was registered runs on"
	if out.boot != "" {
		kind = strings.ReplaceAll(string(out.boot), "_", " ") + ": " + strings.Join(out.evidence, ", ")
	}
	f.Text += fmt.Sprintf(", decided by %s: %s (%s); otherwise: %s", d.Row, why, kind, recovery.Otherwise(d.Row))
	if d.Row == recovery.ReasonFirstRegistration && s.serves == nil {
		s.assumed = append(s.assumed, "it serves nothing that is assigned to others")
	}
	if what := unreadable(seen); what != "" {
		f.Warn = true
		f.Text += ". Cannot be read: " + what + " (" + unreadHint + ")"
	}
	if len(s.assumed) > 0 {
		f.Text += " Assumed: " + strings.Join(s.assumed, "; ")
	}
	return f
}

// considered is consider, which looks a second time at the lease of a registration that may be a copy's.
func (r *registrar) considered(ctx context.Context, client *cluster.Client) (seen cluster.Snapshot, out outcome, err error) {
	for looked := false; ; looked = true {
		bounded, cancel := context.WithTimeout(ctx, check.Timeout)
		seen, _, out, err = r.consider(bounded, client, nil)
		cancel()
		if looked || !errors.Is(err, lease.ErrDeferred) || r.sighted.lease == 0 {
			return seen, out, err
		}
		probes.Sleep(ctx, recovery.LooksApart(r.cfg.RenewInterval)+time.Millisecond)
	}
}

// paused reports whether the pause that an earlier sidecar was given still lasts.
func (s start) paused() bool { return !s.pauseEnds().IsZero() }

// pauseEnds is when that pause ends; zero: there is none, or it is over.
func (s start) pauseEnds() time.Time {
	boot, _ := process.BootID() // empty where the host does not tell
	if p := s.memory.Pause; p != nil && p.Left(time.Now(), boot, time.Duration(lease.BootClock())) > 0 {
		return p.Until
	}
	return time.Time{}
}
