package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

const hashes = `/0x[0-9a-f]{8}_0x[0-9a-f]{8}$`

var (
	bundles = regexp.MustCompile(`^` + part + `/` + part + hashes)                            // as Pulsar lists them
	topics  = regexp.MustCompile(`^/` + part + `~` + part + hashes)                           // as we do
	ofOne   = regexp.MustCompile(`^(pulsar|(pulsar|sla-monitor)/[^/]+)/[^/]*:[^/]*` + hashes) // broker, for its life
)

// owned is what a broker owns, apart from what is its own for life.
type owned struct {
	serving, leaving []string // bundles; those on their way out are closed
	// unreadable is what else it owns, as brokerapi.Unreadable shows it: any client makes
	// one by looking up a topic with a slash in its name.
	unreadable []string
}

// parseOwned reads each entry by itself. A bundle that does not say whether it is active
// counts as served.
func parseOwned(list map[string]json.RawMessage) (o owned) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		var status struct {
			Active *bool `json:"is_active"`
		}
		switch {
		case ofOne.MatchString(name):
		case !bundles.MatchString(name):
			o.unreadable = append(o.unreadable, brokerapi.Unreadable(name))
		case json.Unmarshal(list[name], &status) == nil && status.Active != nil && !*status.Active:
			o.leaving = append(o.leaving, name)
		default:
			o.serving = append(o.serving, name)
		}
	}
	return o
}

// topicOf is our name of a bundle.
func topicOf(bundle string) string { return "/" + strings.Replace(bundle, "/", "~", 1) }

// Topics implements brokerapi.Broker: the bundles that are owned here and served. What is
// on its way out is in neither list.
func (b *Broker) Topics(ctx context.Context) (brokerapi.Held, error) {
	o, err := b.list(ctx)
	if err != nil {
		return brokerapi.Held{}, err
	}
	held := brokerapi.Held{Unreadable: o.unreadable}
	for _, bundle := range o.serving {
		held.Serving = append(held.Serving, topicOf(bundle))
	}
	slices.Sort(held.Serving)
	return held, nil
}

// Serve implements brokerapi.Broker.
func (b *Broker) Serve(_ context.Context, topic string, _ []byte) error {
	return fmt.Errorf("load %s: Pulsar's own cluster decides who owns a bundle, when a client comes: %w", topic, errors.ErrUnsupported)
}

// Withdraw implements brokerapi.Broker. The bundle goes to whoever is asked for it next, which
// may be this broker.
func (b *Broker) Withdraw(ctx context.Context, topic string) error {
	bundle, err := bundleOf(topic)
	if err != nil {
		return err
	}
	return b.unload(ctx, bundle)
}

// bundleOf is the bundle of our name.
func bundleOf(topic string) (string, error) {
	if !topics.MatchString(topic) {
		return "", brokerapi.Errorf(brokerapi.ErrRefused, "unload %s: no bundle: want /tenant~namespace/0x00000000_0xffffffff", topic)
	}
	return strings.Replace(topic[1:], "~", "/", 1), nil
}

func (b *Broker) unload(ctx context.Context, bundle string) error {
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPut, Path: "/admin/v2/namespaces/" + bundle + "/unload"})
	if err != nil {
		return fmt.Errorf("unload %s: %w", bundle, err)
	}
	refused := a.Want(http.StatusNoContent, http.StatusOK)
	if refused == nil {
		return nil
	}
	// The broker's own list is the judge: a release that fails leaves the bundle closed,
	// and one that is not owned here needs no unloading.
	o, err := b.list(ctx)
	if err == nil && slices.Contains(o.serving, bundle) {
		err = refused
	}
	if err != nil {
		return fmt.Errorf("unload %s: %w", bundle, err)
	}
	return nil
}
