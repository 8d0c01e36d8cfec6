package danube

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/brokerapi/danube/danubepb"
)

// place is where a topic is served, as the broker says on its client port.
type place int

const (
	nowhere   place = iota // not by this broker, and it knows of no other
	here                   // loaded by this broker
	elsewhere              // another broker has it
)

// lookups bounds how many topics are looked up at once.
const lookups = 16

// where asks where the topic is served. An answer that leaves it open is an error:
// only one that says so means nowhere. A redirect to itself says that it should serve the
// topic, and does not.
func (n *node) where(ctx context.Context, topic string) (place, error) {
	if !utf8.ValidString(topic) {
		return nowhere, nil // a key of etcd may be so called, and no topic of a Danube broker
	}
	request := &danubepb.TopicLookupRequest{RequestId: rand.Uint64(), Topic: topic}
	answer, err := n.discovery.TopicLookup(ctx, request)
	if c := status.Code(err); c == codes.NotFound || c == codes.InvalidArgument { // the name is well formed, so that is not what is invalid
		return nowhere, nil
	}
	owner, kind := cmp.Or(answer.GetBrokerUrl(), answer.GetConnectUrl()), answer.GetResponseType()
	switch {
	case err != nil:
		return nowhere, err
	case answer.GetRequestId() != request.RequestId:
		return nowhere, fmt.Errorf("--danube-lookup %s: TopicLookup answered another request: is it a Danube broker's client port?", n.lookup.url)
	case kind == danubepb.TopicLookupResponse_Connect:
		return here, nil
	case kind != danubepb.TopicLookupResponse_Redirect || owner == "":
		return nowhere, fmt.Errorf("--danube-lookup %s: TopicLookup of %s answered %s without a broker: see the broker's log", n.lookup.url, topic, kind)
	case strings.EqualFold(path.Base(owner), n.lookup.url.Host):
		return nowhere, nil
	}
	return elsewhere, nil
}

// served looks up the topics and returns those that are loaded here, in order.
func (n *node) served(ctx context.Context, topics []string) ([]string, error) {
	at := make([]place, len(topics))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(lookups)
	for i, topic := range topics {
		all.Go(func() (err error) {
			if err = ctx.Err(); err == nil {
				at[i], err = n.where(ctx, topic)
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	var loaded []string
	for i, topic := range topics {
		if at[i] == here {
			loaded = append(loaded, topic)
		}
	}
	return loaded, nil
}

// union is both lists in order, each topic once.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// await looks up the topic again and again until it is where done wants it, ctx ends, or
// done says what is wrong.
func (n *node) await(ctx context.Context, topic string, done func(place) (bool, error)) error {
	if _, _, err := brokerapi.SplitTopic(topic); err != nil {
		return err
	}
	for pause := 20 * time.Millisecond; ; pause = min(pause*2, 250*time.Millisecond) {
		at, err := n.where(ctx, topic)
		if err != nil {
			return err
		}
		if ok, err := done(at); ok || err != nil {
			return err
		}
		if err := brokerapi.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// ended is the error of what was awaited, if there is one; late is for one that came with the end of ctx.
func ended(ctx context.Context, verb, topic, late string, err error) error {
	switch {
	case err == nil:
		return nil
	case isOver(ctx):
		err = fmt.Errorf("%s: %w", late, err)
	}
	return fmt.Errorf("%s %s: %w", verb, topic, err)
}
