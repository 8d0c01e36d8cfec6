package nats

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	client "github.com/nats-io/nats.go"

	"holdfast/brokerapi"
)

// errSubjectsOverlap has JetStream's own code for that, as published in its errors.json, as has
// noReplicas: a server that is alone keeps none.
var errSubjectsOverlap = &client.APIError{ErrorCode: 10065}

const noReplicas client.ErrorCode = 10074

const startJetStream = "start nats-server with -js (or set jetstream in its configuration)"

// refused is JetStream's refusal of one request, in our words.
func refused(e *client.APIError) error {
	text := fmt.Sprintf("JetStream refused: %s (err_code %d)", e.Description, e.ErrorCode)
	switch e.ErrorCode {
	case client.JSErrCodeJetStreamNotEnabled:
		text += ": " + startJetStream
	case client.JSErrCodeJetStreamNotEnabledForAccount:
		text += ": enable JetStream for the account that we log in to"
	}
	return brokerapi.Errorf(e, "%s", text)
}

// api makes one request to $JS.API and decodes the answer into into, unless it
// is nil. A refusal wraps a *client.APIError. It ends with ctx, after the time for one
// answer, or when the connection breaks.
func (b *Broker) api(ctx context.Context, verb string, asked, into any) error {
	request := client.NewMsg("$JS.API." + verb)
	if asked != nil {
		var err error
		if request.Data, err = json.Marshal(asked); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}
	return b.ask(ctx, request, into)
}

// ask makes one request to JetStream, as api does.
func (b *Broker) ask(ctx context.Context, request *client.Msg, into any) error {
	nc, link, err := b.connected(ctx)
	if err != nil {
		return err
	}
	ctx, done := brokerapi.Bounded(ctx, link, b.cfg.Timeout)
	defer done()
	msg, err := nc.RequestMsgWithContext(ctx, request)
	var answer struct {
		Error *client.APIError `json:"error"`
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(err, client.ErrNoResponders):
		err = fmt.Errorf("JetStream does not answer there: %s: %w", startJetStream, err)
	case err != nil:
		err = cmp.Or(cause, err)
	default:
		if err = json.Unmarshal(msg.Data, &answer); err == nil {
			if answer.Error != nil {
				return refused(answer.Error)
			}
			b.answered.Store(time.Now().UnixNano())
			if into != nil {
				err = json.Unmarshal(msg.Data, into)
			}
		}
		if err != nil {
			err = fmt.Errorf("JetStream answered %.80q: %w", msg.Data, err)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", b.at, err)
	}
	return nil
}
