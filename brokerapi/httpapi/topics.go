package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

const (
	pageSize  = 1000
	maxTopics = 1_000_000 // listed by one broker
	maxNames  = 64 << 20  // bytes of the names of those
	maxRecord = 1 << 20   // bytes of a topic's record
)

// State is what a broker can say of a topic.
type State string

// The states of a topic. An absent one may have data; it is not served and not listed.
const (
	Serving  State = "serving"
	Quiesced State = "quiesced"
	Absent   State = "absent"
)

// Topics implements brokerapi.Broker. In doubt a topic counts as
// served: one of another state, and one that is listed twice, served once.
func (b *Broker) Topics(ctx context.Context) (brokerapi.Held, error) {
	type seen struct{ topic, served bool }
	all, after, names := map[string]seen{}, "", 0
	for {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if after != "" {
			query.Set("after", after)
		}
		var page struct {
			Topics *[]json.RawMessage `json:"topics"`
			Next   string             `json:"next"`
		}
		a, err := b.ask(ctx, rest.Request{Path: "/topics", Query: query}, &page, http.StatusOK)
		if err == nil && page.Topics == nil {
			err = a.Errorf("topics is missing")
		}
		if err != nil {
			return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
		}
		known := len(all)
		for _, raw := range *page.Topics {
			var e struct {
				Name  string `json:"name"`
				State any    `json:"state"`
			}
			if json.Unmarshal(raw, &e) != nil {
				e.Name = string(raw) // which is no name of a topic
			}
			_, _, flaw := brokerapi.SplitTopic(e.Name)
			is, idle := all[e.Name], e.State == string(Quiesced)
			away := e.State == string(Absent)
			all[e.Name] = seen{is.topic || flaw == nil && !away, is.served || !idle && !away}
			names += len(e.Name)
		}
		switch after = page.Next; {
		case len(all) > maxTopics || names > maxNames:
			err = a.Errorf("more than %d topics, or more than %d bytes of their names", maxTopics, maxNames)
		case after != "" && len(all) == known:
			err = a.Errorf("a page that leads nowhere: it has no topic that those before it have not")
		}
		if err != nil {
			return brokerapi.Held{}, fmt.Errorf("list topics: %w", err)
		}
		if after == "" {
			break
		}
	}
	var held brokerapi.Held
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch is := all[name]; {
		case is.topic && is.served:
			held.Serving = append(held.Serving, name)
		case is.topic:
			held.Withdrawn = append(held.Withdrawn, name)
		case is.served:
			held.Unreadable = append(held.Unreadable, brokerapi.Unreadable(name))
		}
	}
	return held, nil
}

// topicRequest is what every call about a topic sends.
type topicRequest struct {
	Topic  string          `json:"topic"`
	Record json.RawMessage `json:"record,omitempty"` // load
}

// Serve implements brokerapi.Broker.
func (b *Broker) Serve(ctx context.Context, topic string, record []byte) error {
	if err := b.usable("load", topic, record); err != nil {
		return brokerapi.Errorf(brokerapi.ErrRefused, "%v", err)
	}
	return b.change(ctx, "load", topicRequest{topic, record}, Serving)
}

// usable says why a record cannot be sent; nil: it can.
func (b *Broker) usable(verb, topic string, record []byte) error {
	if len(record) > 0 && (!json.Valid(record) || !utf8.Valid(record) || len(record) > maxRecord) {
		return fmt.Errorf("%s %s: topic record %s/topics%s: want JSON of at most %d bytes: mend it or remove it", verb, topic, b.keyPrefix, topic, maxRecord)
	}
	return nil
}

// Withdraw implements brokerapi.Broker: the topic is quiesced, or unloaded by a broker that cannot.
func (b *Broker) Withdraw(ctx context.Context, topic string) error {
	err := b.change(ctx, "quiesce", topicRequest{Topic: topic}, Quiesced, Absent)
	if errors.Is(err, errors.ErrUnsupported) {
		err = b.change(ctx, "unload", topicRequest{Topic: topic}, Absent)
	}
	return err
}

// change makes a call about one topic and wants it to be in one of the states.
func (b *Broker) change(ctx context.Context, verb string, r topicRequest, want ...State) error {
	if err := sendable(verb, r.Topic); err != nil {
		return err
	}
	var now struct {
		State State `json:"state"`
	}
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPost, Path: "/topics/" + verb, Body: r}, &now, http.StatusOK)
	if err == nil && !slices.Contains(want, now.State) {
		err = a.Errorf("the state is %q, want one of %q", now.State, want)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, r.Topic, err)
	}
	return nil
}

// sendable says why a topic cannot be named in a request; nil: it can.
func sendable(verb, topic string) error {
	if _, _, err := brokerapi.SplitTopic(topic); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	if !utf8.ValidString(topic) {
		return fmt.Errorf("%s: topic %q: is not UTF-8, which JSON cannot carry", verb, topic)
	}
	return nil
}
