package agent

import (
	"context"
	"sync"

	"holdfast/brokerapi"
)

// A broker has a stable name, under which this sidecar knows it, and the id that it is
// registered under. For most they are one; some brokers register themselves under an id
// that is another at each start (brokerapi.Traits.Registers).
type brokerIDs struct {
	// registered is the id whose state and assignments count: of the process that the
	// Registrar decided about last.
	registered changingID
	// answering is the id of the process that answers now, whose registration is awaited.
	answering changingID
	// assigned is the id whose assignments are followed; empty: none are taken up.
	assigned changingID
}

// changingID is an id that others follow. Empty: not known yet. It is safe for concurrent
// use.
type changingID struct {
	mu   sync.Mutex
	id   string
	anew context.Context // over when it is to be followed anew; nil: nobody asked
	end  context.CancelFunc
}

// get returns the id, and what is over when it is to be followed anew.
func (c *changingID) get() (id string, anew context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.anew == nil {
		c.anew, c.end = context.WithCancel(context.Background())
	}
	return c.id, c.anew
}

func (c *changingID) now() string {
	id, _ := c.get()
	return id
}

// set has the id followed if it is news, and reports that.
func (c *changingID) set(id string) bool {
	news := id != c.now()
	if news {
		c.follow(id)
	}
	return news
}

// follow has the id followed anew.
func (c *changingID) follow(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id = id; c.anew != nil {
		c.end()
	}
	c.anew = nil
}

// following runs follow for the id, and anew whenever that is asked for. Without an id it waits.
func following(of *changingID, follow func(ctx context.Context, id string) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			id, anew := of.get()
			one, stop := context.WithCancel(ctx)
			release := context.AfterFunc(anew, stop)
			var err error
			if id != "" {
				err = follow(one, id)
			} else {
				<-one.Done()
				err = one.Err()
			}
			again := one.Err() != nil && ctx.Err() == nil
			release()
			stop()
			if !again {
				return err
			}
		}
	}
}

// noteInstance has the registration of the process that answers followed.
func (a *agent) noteInstance(who brokerapi.Report) {
	if a.traits.Registers && who.Instance != "" && a.ids.answering.set(who.Instance) {
		a.log.Info("broker process found", "broker_id", a.brokerID, "registers_as", who.Instance)
	}
}

// forgetFormer forgets what the broker's process before this one served.
func (a *agent) forgetFormer(instance string) {
	if instance == "" || instance == a.answered {
		return
	}
	if a.answered != "" {
		a.reconciler.ForgetServed()
	}
	a.answered = instance
}

// undecided reports whether the process that answers is another than the one that was
// decided about last, and is registered under another id.
func (a *agent) undecided() bool { return a.ids.answering.now() != a.ids.registered.now() }

// overdue reports whether the registration of the process before is to run out. While its
// successor is awaited its lease is renewed, so that a restart costs nothing; one that has
// not registered itself after a whole TTL, or cannot be fenced, must not keep from the
// cluster what nobody serves.
func (a *agent) overdue(instance string) bool {
	now := a.clock()
	switch {
	case !a.traits.Registers || !a.undecided():
		a.succeeding = 0
		return false
	case a.succeeding == 0:
		a.succeeding = now
	}
	registered := a.seenKey != nil && a.seenKey.id == instance && a.seenKey.kv != nil
	if _, held := a.handedTo(instance); held { // the Registrar saw it; the watch may be blind
		registered = true
	}
	overdue := now.Sub(a.succeeding) >= a.cfg.LeaseTTL && (!registered || a.unfenced(instance)) && !a.keeper.View().Validity.ExpiredAt(now)
	if overdue && a.gate {
		a.log.Warn("the broker's new process is not registered: the registration of the one before is renewed no more", "registers_as", instance,
			"registered_as", a.ids.registered.now(), "waited", now.Sub(a.succeeding), "registered_itself", registered)
	}
	return overdue
}
