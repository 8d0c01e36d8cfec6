package agent

import (
	"time"

	"holdfast/agent/control"
	"holdfast/probes"
)

// remember changes what the next life of this sidecar will know. It is written by
// the saver; the loop never waits for a disk.
func (a *agent) remember(change func(*memory)) {
	a.saveMu.Lock()
	change(&a.memory)
	a.unsaved = a.memory
	a.saveMu.Unlock()
	select {
	case a.saving <- struct{}{}:
	default:
	}
}

// saveAgain is the pause after which a save that failed is tried again.
const saveAgain = 5 * time.Second

// The revision of the last confirmed renewal is noted on disk this often. After a crash it
// tells an etcd that was restored from an older backup. Of an adopted broker it also tells
// peers that lived through from peers that came later; an older note errs towards those that
// came later.
const (
	confirmedEvery        = time.Minute
	confirmedAdoptedEvery = 10 * time.Second
)

// noteConfirmed is called in each run of the loop, and wakes nobody for itself.
func (a *agent) noteConfirmed(now time.Time) {
	every := confirmedEvery
	switch {
	case a.presence != nil: // for how long the broker is away is counted from the last one
		every = 0
	case a.cfg.Registration == "adopt":
		every = confirmedAdoptedEvery
	}
	if now.Sub(a.noted) >= every && a.noteLastConfirmed() {
		a.noted = now
	}
}

// noteLastConfirmed reports whether the last confirmed renewal is newer than what was noted.
func (a *agent) noteLastConfirmed() bool {
	rev := a.keeper.View().Grant.Revision
	if rev <= a.memory.ConfirmedAt {
		return false
	}
	a.remember(func(m *memory) { m.ConfirmedAt = rev })
	return true
}

// saveNow writes the memory as it is. It is safe for concurrent use, and what is older
// never replaces what is newer.
func (a *agent) saveNow() error {
	a.fileMu.Lock()
	defer a.fileMu.Unlock()
	a.saveMu.Lock()
	m := a.unsaved
	a.saveMu.Unlock()
	if m.Format == 0 {
		return nil
	}
	if err := a.dir.take(); err != nil {
		return err
	}
	return a.dir.save(m)
}

// lookEvery is the pause between two looks whether the state directory is still the one that
// was opened.
const lookEvery = 2 * time.Second

// saver writes the memory whenever it changed, the last time at the very end, and anew where
// somebody has removed or replaced the directory.
func (a *agent) saver() {
	tried := time.Now()
	save := func() {
		tried = time.Now()
		a.noteSaved(a.saveNow())
	}
	for {
		select {
		case <-a.life0.Done():
			save()
			return
		case <-a.saving:
			save()
		case <-time.After(probes.UntilTick(lookEvery)):
			a.fileMu.Lock()
			stands := a.dir.stands()
			a.fileMu.Unlock()
			if a.unsavedWhy() != "" && time.Since(tried) >= saveAgain || a.unsavedWhy() == "" && !stands {
				save()
			}
		}
	}
}

// noteSaved says what became of a save, on change.
func (a *agent) noteSaved(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	switch was, _ := a.saveFails.Swap(why).(string); {
	case why != "" && was == "":
		a.log.Error("state not saved: a restart of this sidecar would know less", "err", err)
		a.event(control.Event{Kind: "agent", To: "state_unsaved", Detail: why})
	case why == "" && was != "":
		a.log.Info("state saved again")
		a.event(control.Event{Kind: "agent", From: "state_unsaved", To: "state_saved"})
	}
}

// unsavedWhy is why the state is not saved; empty: it is. It is safe for concurrent use.
func (a *agent) unsavedWhy() string {
	why, _ := a.saveFails.Load().(string)
	return why
}
