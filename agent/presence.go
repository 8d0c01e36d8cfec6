package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/lease"
	"holdfast/agent/note"
	"holdfast/agent/registration"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery"
)

// unleased is the value of --registration with which there is no etcd, see none.
const unleased = "none"

// watchPresence says that the loop runs. A broker that is away for too long is not registered any more.
func (a *agent) watchPresence() {
	if a.presence != nil && a.presence.Watch() && a.grant.LeaseID != 0 {
		a.metrics.present.Store(false)
		a.noteLoss(a.lossCause())
		a.remember(func(m *memory) { m.LeaseID = 0 })
	}
}

// setModeHere takes up an operator's word, which is in the state file when this returns.
func (a *agent) setModeHere(ctx context.Context, m recovery.ModeRecord) error {
	if err := a.await(ctx, func() { a.setMode(m, a.modeRev+1, "by an operator") }); err != nil {
		return err
	}
	if err := a.saveNow(); err != nil {
		return fmt.Errorf("the broker is %s now, but not saved, so a restart of this sidecar would not know: %w: free space on the disk of --state-dir, then repeat", m.Mode, err)
	}
	return nil
}

// keptHere is that the state file keeps it. Earlier versions wrote "none", see formerStore.
const keptHere = "state"

// keptIn notes where the registration is kept from now on; empty: in an etcd. Elsewhere leases
// and revisions mean nothing here.
func (m *memory) keptIn(store string) {
	if m.Store != store && (m.FirstBootDone || m.Revision != 0) {
		m.LeaseID, m.Epoch, m.Revision, m.ConfirmedAt, m.Whole, m.Released = 0, 0, 0, 0, 0, false
	}
	m.Store = store
}

// formerStore is the file in which earlier versions kept the mode, and how long the broker was
// away. It may know a newer mode than the state file.
const formerStore = "store.json"

// takeFormerStore takes up what stands in the file of an earlier version, once: Store says then
// that the state file has it. For what cannot be read, or is gone, the broker is drained.
func (m *memory) takeFormerStore(dir string) error {
	var f struct {
		Store struct {
			At      struct{ Now, Wall time.Time } `json:"at"`
			Content struct {
				Keys   []struct{ Key, Value string }
				Leases []struct{ Deadline time.Time }
			} `json:"content"`
		} `json:"store"`
	}
	path := filepath.Join(dir, formerStore)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.Store != unleased:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--state-dir %s: read %s: %s: make it readable for this user", dir, formerStore, config.Cause(err))
	}
	flaw := cmp.Or(err, json.Unmarshal(raw, &f))
	if flaw == nil && len(f.Store.Content.Keys) == 0 {
		flaw = errors.New("it holds nothing")
	}
	if !m.FirstBootDone && (errors.Is(err, fs.ErrNotExist) || err == nil && len(f.Store.Content.Keys) == 0 && json.Valid(raw)) {
		flaw = nil // nothing was ever kept
	}
	registered, keys := false, cluster.NewKeys("")
	for _, kv := range f.Store.Content.Keys {
		if _, ok := keys.ParseRegistration(kv.Key); ok {
			registered = true
		}
		if _, ok := keys.ParseState(kv.Key); ok {
			var s cluster.State
			if s, err = cluster.ParseState([]byte(kv.Value)); err == nil && *registration.ModeOf(&s) != m.ModeRecord() {
				m.Mode, m.Reason, m.By, m.Decided = s.Mode, s.Reason, s.By, nil
			}
			flaw = errors.Join(flaw, err)
		}
	}
	if flaw != nil {
		m.Distrust = strings.TrimPrefix(fmt.Sprintf("%s; %s cannot be read (%v)", m.Distrust, path, flaw), "; ")
	}
	for _, l := range f.Store.Content.Leases {
		m.Confirm(note.Confirmed{Deadline: f.Store.At.Wall.Add(l.Deadline.Sub(f.Store.At.Now))})
	}
	if !registered {
		m.LeaseID = 0
	}
	return nil
}

// keepPlace settles where what is known of the broker is kept in this life.
func (a *agent) keepPlace() error {
	if !a.cfg.Unleased() {
		a.memory.keptIn("")
		return nil
	}
	a.dir.only = true
	var would func(act, about string)
	if a.shadow != nil {
		would = a.shadow.would
	}
	a.presence = registration.NewNone(func() lease.Clocks { return a.world.Clocks() }, func(ctx context.Context) (brokerapi.Report, error) { return a.broker.Probe(ctx) }, would)
	former := a.memory.Store == unleased || !a.memory.FirstBootDone
	if former && a.shadow == nil {
		if err := a.memory.takeFormerStore(a.cfg.StateDir); err != nil {
			return err
		}
		a.memory.Store = keptHere
	}
	a.memory.keptIn(keptHere)
	return nil
}
