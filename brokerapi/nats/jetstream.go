package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	client "github.com/nats-io/nats.go"
)

// JetStream's own error codes (err_code), as published in its errors.json.
const (
	codeNotEnabledForAccount = 10039
	codeNameInUse            = 10058
	codeStreamNotFound       = 10059
	codeSubjectsOverlap      = 10065
	codeNotEnabled           = 10076
)

const startJetStream = "start nats-server with -js (or set jetstream in its configuration)"

// apiError is JetStream's refusal of one request.
type apiError struct {
	Code        int    `json:"code"`     // like an HTTP status
	ErrCode     int    `json:"err_code"` // which error it is
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	text := fmt.Sprintf("JetStream refused: %s (err_code %d)", e.Description, e.ErrCode)
	switch e.ErrCode {
	case codeNotEnabled:
		text += ": " + startJetStream
	case codeNotEnabledForAccount:
		text += ": enable JetStream for the account that we log in to"
	}
	return text
}

func isCode(err error, code int) bool {
	var refused *apiError
	return errors.As(err, &refused) && refused.ErrCode == code
}

// api makes one request to $JS.API and decodes the answer into into, unless it
// is nil. A refusal is an *apiError. It ends with ctx, after the time for one
// answer, or when the connection breaks.
func (b *Broker) api(ctx context.Context, verb string, body []byte, into any) error {
	nc, link, err := b.connected(ctx)
	if err != nil {
		return err
	}
	ctx, done := b.within(ctx, link)
	defer done()
	msg, err := nc.RequestWithContext(ctx, "$JS.API."+verb, body)
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(err, client.ErrNoResponders):
		return fmt.Errorf("--broker-admin %s: JetStream does not answer there: %s: %w", b.admin, startJetStream, err)
	case cause != nil:
		return fmt.Errorf("--broker-admin %s: %w", b.admin, cause)
	default:
		return fmt.Errorf("--broker-admin %s: %w", b.admin, err)
	}
	var refusal struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &refusal); err != nil {
		return fmt.Errorf("--broker-admin %s: JetStream answered %.80q: %w", b.admin, msg.Data, err)
	}
	if refusal.Error != nil {
		return refusal.Error
	}
	b.answered.Store(time.Now().UnixNano())
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(msg.Data, into); err != nil {
		return fmt.Errorf("--broker-admin %s: JetStream answered %.80q: %w", b.admin, msg.Data, err)
	}
	return nil
}
