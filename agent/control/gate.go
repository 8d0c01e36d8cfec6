package control

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"holdfast/probes"
)

const (
	// ChildProbe bounds the question to etcd whether a fenced broker may start again.
	ChildProbe = time.Second
	// gateAsk bounds one question of a gate: a probe of etcd, and some patience.
	gateAsk = ChildProbe + 2*time.Second
	// gateLook is the pause between two questions.
	gateLook = 250 * time.Millisecond
)

// GateAnswer is a sidecar's word on whether its broker may start now. The broker that
// somebody else starts gets the same one as the child of 'holdfast run -- CMD'.
type GateAnswer struct {
	MayStart bool   `json:"may_start"`
	Reason   string `json:"reason,omitempty"` // one word: "fenced", "paused"
	Detail   string `json:"detail,omitempty"` // a sentence for people
}

// Gate asks once whether the broker may start now. Nil: it may.
func (c *Client) Gate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gateAsk)
	defer cancel()
	var answer GateAnswer
	if _, err := c.Get(ctx, "/v1/gate", &answer); err != nil {
		return err
	}
	if !answer.MayStart {
		return fmt.Errorf("the sidecar on %s holds the broker back (%s): %s: see 'holdfast status'", c.socket, answer.Reason, answer.Detail)
	}
	return nil
}

// AwaitGate asks until the broker may start, and returns nil then. It returns the last
// reason against it when wait is over, and calls waiting with each one that is new. A
// sidecar that is not there yet is waited for like any other reason. When ctx ends it
// returns the error of ctx, whatever the sidecar says.
func (c *Client) AwaitGate(ctx context.Context, wait time.Duration, waiting func(why error)) error {
	asking, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var why error
	for {
		err := c.Gate(asking)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case why == nil, asking.Err() == nil && err.Error() != why.Error(): // else time has cut the answer short
			why = err
			waiting(why)
		}
		if probes.Sleep(asking, gateLook); asking.Err() != nil {
			return cmp.Or(ctx.Err(), why) // the end of ctx is the other's, too
		}
	}
}
