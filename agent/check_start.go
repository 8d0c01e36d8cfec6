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
	"holdfast/agent/registration"
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
	data       recovery.DataID // see registration.Life
	localData  bool            // it is on this broker only
	byInstance bool
	before     note.Confirmed // see registration.Deps
	moved      bool           // the state directory is not where it was
	clock      func() lease.Instant
	serves     func(context.Context) ([]string, error) // nil: it is not asked
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
		s.memory = newMemory()
	}
	s.moved = s.memory.movedTo((&stateDir{path: c.StateDir}).place())
	s.memory.keptIn("")
	if s.memory.Epoch != 0 {
		s.before = note.Read(c.StateDir)
		s.memory.Confirm(s.before)
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
		s.serves = func(ctx context.Context) ([]string, error) {
			held, err := broker.Topics(ctx)
			return held.Serving, err
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
	if left := s.memory.Left; left != nil && left.Instance == s.instance && left.Rest(s.cfg) > 0 {
		f.Warn, f.Text = true, "would wait: "+left.Waits(s.cfg)
		return f
	}
	r := registration.New(registration.Deps{Config: s.cfg, Run: randomID(), Moved: s.moved, ByInstance: s.byInstance, Log: log, Clock: s.clock,
		Serves: s.serves, Before: s.before, Life: func() registration.Life {
			return registration.Life{Name: s.name, Past: s.memory.Past, Instance: s.instance, Boot: s.boot, Data: s.data, Recalls: true, PauseEnds: s.pauseEnds()}
		}})
	return s.worded(r.Foretell(ctx, client, check.Timeout))
}

// worded says what was foretold.
func (s start) worded(out registration.Outcome, err error) check.Finding {
	f := check.Finding{What: "start"}
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
	d, why := out.Decision, out.Decision.Detail
	switch d.Step {
	case recovery.Conflict:
		f.Warn, f.Text = true, "would wait, detached"
	case recovery.Shutdown:
		f.Warn, f.Text = true, "would stop the broker"
	default:
		f.Warn = d.Mode.Mode != recovery.Active && d.Mode.By == recovery.ByHoldfast
		f.Text = fmt.Sprintf("would be %s (%s)", d.Mode.Mode, d.Mode.Reason)
	}
	kind := "the process that was registered runs on"
	if out.Boot != "" {
		kind = strings.ReplaceAll(string(out.Boot), "_", " ") + ": " + strings.Join(out.Evidence, ", ")
	}
	f.Text += fmt.Sprintf(", decided by %s: %s (%s); otherwise: %s", d.Row, why, kind, recovery.Otherwise(d.Row))
	if d.Row == recovery.ReasonFirstRegistration && s.serves == nil {
		s.assumed = append(s.assumed, "it serves nothing that is assigned to others")
	}
	if out.Unread != "" {
		f.Warn = true
		f.Text += ". Cannot be read: " + out.Unread + " (" + registration.UnreadHint + ")"
	}
	if len(s.assumed) > 0 {
		f.Text += " Assumed: " + strings.Join(s.assumed, "; ")
	}
	return f
}

// pauseEnds is when that pause ends; zero: there is none, or it is over.
func (s start) pauseEnds() time.Time {
	boot, _ := process.BootID() // empty where the host does not tell
	if p := s.memory.Pause; p != nil && p.Left(time.Now(), boot, time.Duration(lease.BootClock())) > 0 {
		return p.Until
	}
	return time.Time{}
}
