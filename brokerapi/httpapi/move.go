package httpapi

import (
	"context"
	"fmt"
	"strconv"

	"holdfast/brokerapi"
)

// sealedBody is where a topic ended. The offset is text, because readers of JSON in many
// languages round numbers beyond 2^53.
type sealedBody struct {
	Empty      *bool   `json:"empty"`
	LastOffset *string `json:"last_offset,omitempty"`
}

func bodyOf(s brokerapi.Sealed) *sealedBody {
	body := &sealedBody{Empty: &s.Empty}
	if !s.Empty {
		last := strconv.FormatUint(s.LastOffset, 10)
		body.LastOffset = &last
	}
	return body
}

// sealed refuses what could be read in two ways.
func (s sealedBody) sealed() (brokerapi.Sealed, error) {
	switch {
	case s.Empty == nil:
		return brokerapi.Sealed{}, fmt.Errorf("empty: %w", errIncomplete)
	case *s.Empty && s.LastOffset != nil:
		return brokerapi.Sealed{}, fmt.Errorf("an empty topic has no last_offset")
	case *s.Empty:
		return brokerapi.Sealed{Empty: true}, nil
	case s.LastOffset == nil:
		return brokerapi.Sealed{}, fmt.Errorf("last_offset: %w", errIncomplete)
	}
	last, err := strconv.ParseUint(*s.LastOffset, 10, 64)
	if err != nil || strconv.FormatUint(last, 10) != *s.LastOffset {
		return brokerapi.Sealed{}, fmt.Errorf("last_offset %q is not a number in decimal digits", *s.LastOffset)
	}
	return brokerapi.Sealed{LastOffset: last}, nil
}

// Commit implements brokerapi.Mover.
func (b *Broker) Commit(ctx context.Context, topic string) error {
	return b.change(ctx, "commit", topicRequest{Topic: topic}, Quiesced, Sealed)
}

// Seal implements brokerapi.Mover.
func (b *Broker) Seal(ctx context.Context, topic string) (brokerapi.Sealed, error) {
	var body sealedBody
	a, err := b.post(ctx, "seal", topicRequest{Topic: topic}, &body)
	if err != nil {
		return brokerapi.Sealed{}, err
	}
	end, err := body.sealed()
	if err != nil {
		return brokerapi.Sealed{}, fmt.Errorf("seal %s: %w", topic, a.Errorf("%v", err))
	}
	return end, nil
}

// Resume implements brokerapi.Mover.
func (b *Broker) Resume(ctx context.Context, topic string, from brokerapi.Sealed) error {
	return b.change(ctx, "resume", topicRequest{Topic: topic, From: bodyOf(from)}, Serving)
}

// Delete implements brokerapi.Mover.
func (b *Broker) Delete(ctx context.Context, topic string) error {
	return b.change(ctx, "delete", topicRequest{Topic: topic}, Absent)
}
