package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// modeBody is sent to PUT /mode and answered by it.
type modeBody struct {
	Mode   brokerapi.Mode `json:"mode"`
	Reason string         `json:"reason,omitempty"`
}

// Steer implements brokerapi.Steerer. A broker that takes its time answers 202, which is
// an error here: ask again.
func (b *Broker) Steer(ctx context.Context, mode brokerapi.Mode, reason string) error {
	if mode != brokerapi.Active && mode != brokerapi.Drained {
		return fmt.Errorf("steer: mode %q: want %s or %s", mode, brokerapi.Active, brokerapi.Drained)
	}
	var now modeBody
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPut, Path: "/mode", Body: modeBody{mode, reason}}, &now, http.StatusOK, http.StatusAccepted)
	switch {
	case err != nil:
		return fmt.Errorf("steer to %s: %w", mode, err)
	case a.Status == http.StatusAccepted:
		return fmt.Errorf("steer to %s: the broker is still on its way: ask again", mode)
	case now.Mode != mode:
		return fmt.Errorf("steer to %s: %w", mode, a.Errorf("want mode %q", mode))
	}
	return nil
}

// stopBody names the process that is meant, so that its successor is not stopped.
type stopBody struct {
	Instance string `json:"instance"`
}

// End implements brokerapi.Ender. It is sent once, to the instance that was identified.
func (b *Broker) End(ctx context.Context) error {
	b.mu.Lock()
	instance := b.verified
	b.mu.Unlock()
	if instance == "" {
		id, err := b.Identify(ctx)
		if err != nil {
			return fmt.Errorf("end the broker: %w", err)
		}
		instance = id.Instance
	}
	var took stopBody
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPost, Path: "/stop", Body: stopBody{instance}}, &took, http.StatusAccepted)
	if err != nil {
		return fmt.Errorf("end the broker: %w", err)
	}
	if took.Instance != instance {
		return fmt.Errorf("end the broker: %w", a.Errorf("want instance %q", instance))
	}
	return nil
}
