package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/probes"
)

const (
	// gateAsk bounds one question of a gate: a probe of etcd, and some patience.
	gateAsk = childProbe + 2*time.Second
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

// serveGate answers only while the loop runs: a broker that starts beside a loop that
// hangs has nobody who fences it but the guard.
func (a *agent) serveGate(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), childProbe)
	defer cancel()
	if err := a.await(ctx, func() {}); err != nil {
		refuse(w, errors.New("the sidecar's loop hangs: see its log"))
		return
	}
	var answer GateAnswer
	answer.MayStart, answer.Reason, answer.Detail = a.mayStart()
	reply(w, answer)
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
