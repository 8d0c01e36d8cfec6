package danube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

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

// healthTopic is looked up to see whether the client port answers. It exists nowhere.
const healthTopic = "/holdfast/health"

// lookup asks where the topic is served. An answer that leaves it open is an error:
// only one that says so means nowhere.
func (n *node) lookup(ctx context.Context, topic string) (place, error) {
	if !utf8.ValidString(topic) {
		return nowhere, nil // a key of etcd may be so called, and no topic of a Danube broker
	}
	request := &danubepb.TopicLookupRequest{RequestId: rand.Uint64(), Topic: topic}
	var answer *danubepb.TopicLookupResponse
	err := n.lookupLink.call(ctx, "TopicLookup", func(ctx context.Context) (err error) {
		answer, err = n.discovery.TopicLookup(ctx, request)
		return err
	})
	switch code(err) {
	// The name is well formed, so that is not what is invalid.
	case codes.NotFound, codes.InvalidArgument:
		return nowhere, nil
	case codes.Unimplemented:
		return nowhere, n.noClientPort()
	}
	if err != nil {
		return nowhere, err
	}
	owner := answer.GetBrokerUrl()
	if owner == "" {
		owner = answer.GetConnectUrl()
	}
	kind := answer.GetResponseType()
	switch {
	case answer.GetRequestId() != request.RequestId:
		return nowhere, fmt.Errorf("--danube-lookup %s: TopicLookup answered another request: is it a Danube broker's client port?", n.at.lookup)
	case kind == danubepb.TopicLookupResponse_Connect:
		return here, nil
	case kind == danubepb.TopicLookupResponse_Redirect && owner != "":
		if n.own(owner) {
			return nowhere, nil // it is the one who should serve it, and does not
		}
		return elsewhere, nil
	default:
		return nowhere, fmt.Errorf("--danube-lookup %s: TopicLookup of %s answered %s without a broker: see the broker's log", n.at.lookup, topic, kind)
	}
}

func (n *node) noClientPort() error {
	return identityErrorf("--danube-lookup %s: a gRPC server answers there that is no Danube broker's client port: set --danube-lookup to it (%s)", n.at.lookup, lookupPort)
}

// own reports whether a client address is this broker's.
func (n *node) own(address string) bool {
	advertised, _ := n.advertised.Load().(string)
	address = bare(address)
	return address == bare(n.at.lookup.String()) || advertised != "" && address == bare(advertised)
}

// bare is host:port of a URL, or of what has no scheme.
func bare(address string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	return strings.ToLower(strings.TrimSuffix(address, "/"))
}

// clientPortAnswers is nil if the client port does its work.
func (n *node) clientPortAnswers(ctx context.Context) error {
	_, err := n.lookup(ctx, healthTopic)
	return err
}

// served looks up the topics and returns those that are loaded here, in order.
func (n *node) served(ctx context.Context, topics []string) (loaded []string, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan string)
	for range min(lookups, len(topics)) {
		wg.Go(func() {
			for topic := range next {
				at, err := n.lookup(ctx, topic)
				if err != nil {
					fail(err)
					return
				}
				mu.Lock()
				if at == here {
					loaded = append(loaded, topic)
				}
				mu.Unlock()
			}
		})
	}
feed:
	for _, topic := range topics {
		select {
		case next <- topic:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.Sort(loaded)
	return loaded, nil
}

// union is both lists in order, each topic once.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(a), b...))))
}

// await looks up the topic again and again until it is where done wants it, ctx ends, or
// done says what is wrong.
func (n *node) await(ctx context.Context, topic string, done func(place) (bool, error)) error {
	pause := 20 * time.Millisecond
	for {
		at, err := n.lookup(ctx, topic)
		if err != nil {
			return err
		}
		if ok, err := done(at); ok || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-n.life.Done():
			timer.Stop()
			return errClosed
		}
		pause = min(pause*2, 250*time.Millisecond)
	}
}

func checkTopic(verb, topic string) error {
	if _, _, err := brokerapi.SplitTopic(topic); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}
