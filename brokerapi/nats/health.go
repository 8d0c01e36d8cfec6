package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"holdfast/brokerapi"
)

// Probe implements brokerapi.Broker. It costs one JetStream request and one
// GET /healthz; once for each server process it also compares the identities
// of the two ports with each other and with Config.BrokerID. A server that greets us
// and does not take us in has said who it is.
func (b *Broker) Probe(ctx context.Context) (who brokerapi.Report, err error) {
	nc, _, err := b.connected(ctx)
	if err != nil {
		if id := b.greeter(); id != "" && errors.Is(err, brokerapi.ErrUnseen) {
			if v, unread := b.varz(ctx); unread == nil && v.ServerID == id && b.named(v) == nil {
				who = v.report()
			}
		}
		return who, err
	}
	b.mu.Lock()
	who, leaving := b.known, b.leaving
	b.mu.Unlock()
	if who.Instance != nc.ConnectedServerId() {
		v, err := b.varz(ctx)
		if err == nil {
			err = b.sameServer(ctx, nc, v)
		}
		if err != nil {
			return brokerapi.Report{}, err
		}
		who = v.report()
		b.mu.Lock()
		b.known = who
		b.mu.Unlock()
	}
	if leaving {
		who.Leaving = "nats-server is in lame duck mode: it sends its clients away, and ends"
	}
	return who, b.healthy(ctx)
}

// healthy is nil when JetStream answers and the server says that it is well.
func (b *Broker) healthy(ctx context.Context) error {
	if err := b.jetStreamAnswers(ctx); err != nil {
		return fmt.Errorf("ask JetStream for its state: %w", err)
	}
	a, err := b.get(ctx, "/healthz?js-enabled-only=true")
	if err != nil {
		return err
	}
	var said struct {
		Status string `json:"status"`
	}
	switch err := a.JSON(&said); {
	case err != nil || said.Status == "":
		return cmp.Or(a.Want(http.StatusOK), a.Errorf("no healthy nats-server says that"))
	case a.Status != http.StatusOK || said.Status != "ok": // its own word, and no refusal of us
		return fmt.Errorf("%v: see nats-server's log", a.Errorf(""))
	}
	return nil
}

// jetStreamAnswers asks for the account's state. nats-server gives that out under
// locks which it also needs to create streams: while thousands of topics are
// loaded the answer takes seconds, and yet nothing is wrong. So any other answer
// of JetStream since the question proves as much.
func (b *Broker) jetStreamAnswers(ctx context.Context) error {
	asked := time.Now()
	patience := b.timeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, deadline.Sub(asked)*3/4) // the rest is for /healthz
	}
	ask, cancel := context.WithTimeoutCause(ctx, patience, unanswered(patience.Round(time.Millisecond)))
	defer cancel()
	err := b.api(ask, "INFO", nil, nil)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && b.answered.Load() > asked.UnixNano() {
		return nil
	}
	return err
}
