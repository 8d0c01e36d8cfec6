package pulsar

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"holdfast/brokerapi/rest"
)

// Health implements brokerapi.Broker. The broker is asked to produce and read a message,
// for which it takes as long as it likes, and then whether it is ready.
func (b *Broker) Health(ctx context.Context) error {
	b.watch()
	if err := b.saysOK(ctx, rest.Request{Path: "/admin/v2/brokers/health", Query: url.Values{"topicVersion": {"V2"}}}); err != nil {
		return err
	}
	return b.saysOK(ctx, rest.Request{Path: "/admin/v2/brokers/ready"})
}

// saysOK wants 200 and "ok", and nothing else.
func (b *Broker) saysOK(ctx context.Context, r rest.Request) error {
	r.Accept = "text/plain"
	a, err := b.rest.Do(ctx, r)
	if err != nil {
		return err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return b.stranger(a, err)
	}
	if strings.TrimSpace(string(a.Body)) != "ok" {
		return b.stranger(a, a.Errorf("want ok"))
	}
	return nil
}
