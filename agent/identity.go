package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// identityCheck is the broker's health check, together with the certainty that it
// is the right broker that is healthy. A healthy stranger is no health.
type identityCheck struct {
	broker   brokerapi.Broker
	cfg      config.Config
	expected string // broker id of our state file; empty: none yet

	mu      sync.Mutex
	known   brokerapi.Report // as of the last probe that it answered
	id      string
	askedAt time.Time // zero: not since it may be another
	wrong   error     // the last answer was a stranger's

	leaves atomic.Pointer[lastWord] // of the last process that said that it ends; nil: none did
	silent atomic.Bool              // the last check had no answer in its time
	unseen atomic.Bool              // the last check said something of us, and nothing of the broker
	mustGo atomic.Pointer[string]   // as of the last probe, whatever it ended with; nil: there was none

	// there reports whether the broker is seen to be there, whatever it says; nil: nobody looks.
	there func() bool

	// lives is the process of the broker that was registered when this sidecar began, and
	// whether it is seen to live on; nil: nobody knows.
	lives func() (instance string, seen bool)

	// process is the broker's process as it is watched, and, where none is, how often one was
	// seen to end.
	process func() (t process.Target, ends int64)
	ends    int64
}

func newIdentityCheck(b brokerapi.Broker, c config.Config, expected string) *identityCheck {
	return &identityCheck{broker: b, cfg: c, expected: expected}
}

// check is nil when the expected broker answers and is healthy.
func (i *identityCheck) check(ctx context.Context) error {
	said, err := i.broker.Probe(ctx)
	refused := errors.Is(err, brokerapi.ErrUnseen)
	if !refused {
		err = i.take(said, err)
	}
	if errors.Is(err, brokerapi.ErrIdentity) {
		said.MustGo = "" // a stranger's
	}
	i.mustGo.Store(&said.MustGo)
	if said.Leaving != "" {
		who, _ := i.get()
		i.leaves.Store(&lastWord{cmp.Or(said.Instance, who.Instance), said.Leaving})
	}
	if err != nil {
		err = plainError{err} // a client library may quote what it could not read
	}
	i.silent.Store(!refused && errors.Is(err, context.DeadlineExceeded))
	unseen := refused && (i.there == nil || i.there())
	i.unseen.Store(unseen)
	if unseen {
		return &probes.Unseen{Err: err, Stands: i.recall(said)}
	}
	return err
}

// recall takes a broker that nobody has seen yet for the one that was registered when this
// sidecar began, if it says so itself, or its process lives.
func (i *identityCheck) recall(said brokerapi.Report) bool {
	if _, id := i.get(); id != "" || i.lives == nil || i.expected == "" {
		return false // what it was it stays
	}
	instance, seen := i.lives()
	if said.Instance == "" && seen {
		said = brokerapi.Report{Name: i.expected, Instance: instance}
	}
	return instance != "" && said.Instance == instance && i.take(said, nil) == nil
}

// take takes up what the broker said. What only other settings cure is kept.
func (i *identityCheck) take(said brokerapi.Report, err error) error {
	id := ""
	if err == nil {
		i.nameProcess(&said)
		id, err = i.name(said)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		i.askedAt = time.Time{}
		if errors.Is(err, brokerapi.ErrIdentity) || errors.Is(err, errNoBrokerID) || errors.Is(err, errBadName) {
			i.wrong = err
		}
		return err
	}
	i.known, i.id, i.askedAt, i.wrong = said, id, time.Now(), nil
	i.expected = id // for good: one sidecar keeps one broker
	return nil
}

// nameProcess names the process of a broker that does not tell which it is: by the one that is
// watched, else as before, until one was seen to end.
func (i *identityCheck) nameProcess(who *brokerapi.Report) {
	if who.Instance != "" {
		return
	}
	known, _ := i.get()
	registered := ""
	if i.lives != nil {
		registered, _ = i.lives()
	}
	who.Instance = cmp.Or(known.Instance, registered, "seen")
	if i.process == nil {
		return
	}
	switch t, ends := i.process(); {
	case t.Pid != 0:
		who.Instance = fmt.Sprintf("process-%d-%d", t.Pid, t.StartTicks)
	case ends != i.ends:
		i.ends, who.Instance = ends, fmt.Sprintf("seen-%d", time.Now().UnixMilli())
	}
}

// fatal is what no waiting cures: the settings lead to a stranger, or to a broker
// that cannot be told from others.
func (i *identityCheck) fatal() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.wrong
}

// name is the broker's id: as set, as it calls itself, or as it was before.
func (i *identityCheck) name(who brokerapi.Report) (string, error) {
	id := i.cfg.BrokerID
	if id == "" {
		id = who.Name
	}
	flaw := brokerapi.NameFlaw(id)
	switch {
	case id == "":
		return "", fmt.Errorf("--broker-id: required, because %w: the broker at %s "+
			"would be another at each start: name it there (NATS: server_name) or set --broker-id", errNoBrokerID, i.cfg.BrokerAdmin)
	case flaw != "":
		return "", fmt.Errorf("--broker-id: required, because %w: the broker at %s calls itself %q, and that %s: "+
			"set --broker-id, or name it otherwise there (NATS: server_name)", errBadName, i.cfg.BrokerAdmin, id, flaw)
	case i.expected != "" && i.expected != id:
		return "", fmt.Errorf("--state-dir %s: it belongs to broker %q, and the broker at %s is %q (%w): "+
			"give each broker a state directory of its own, or point --broker-admin at the right one",
			i.cfg.StateDir, i.expected, i.cfg.BrokerAdmin, id, brokerapi.ErrIdentity)
	}
	return id, nil
}

var (
	errNoBrokerID = errors.New("the broker has no stable name")
	errBadName    = errors.New("the broker's own name cannot be its id")
)

func (i *identityCheck) forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.askedAt = time.Time{}
}

// asked is when the identity was last confirmed; zero: it must be asked.
func (i *identityCheck) asked() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.askedAt
}

// get returns the last confirmed identity; id is empty before the first.
func (i *identityCheck) get() (who brokerapi.Report, id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.known, i.id
}

// answers reports whether the broker is up now and was that process when last asked.
func (a *agent) answers(instance string) bool {
	who, _ := a.identity.get()
	return a.health.Snapshot().At(time.Now()) == probes.Up && who.Instance == instance
}

// plainError is an error of others whose text is Plain.
type plainError struct{ error }

func (e plainError) Error() string { return control.Plain(e.error.Error()) }
func (e plainError) Unwrap() error { return e.error }
