//go:build pulsar

package pulsar

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"holdfast/brokerapi"
	"holdfast/brokerapi/brokertest"
	driver "holdfast/brokerapi/pulsar"
	"holdfast/lab/harness"
)

// server is a real broker that all claims share, since it takes long to start one. What a
// claim left is taken away before the next.
type server struct {
	*harness.ApacheBroker
	cluster   *harness.Apache
	client    *client
	neighbour *harness.ApacheBroker // with a claim that wants one
	frozen    bool
}

// empty is the broker without topics and bundles, running.
func (s *server) empty(t *testing.T) *server {
	t.Helper()
	if s.neighbour != nil {
		ok(t, s.neighbour.Stop(soon(t)))
		s.neighbour = nil
	}
	if s.frozen && s.Running() { // it may yet do what it was asked while it was frozen
		s.Kill(t)
	}
	if s.frozen = false; !s.Running() {
		s.Start(t)
	}
	for _, namespace := range namespaces {
		text, err := s.Do(soon(t), http.MethodGet, "/admin/v2/persistent/"+namespace, "")
		ok(t, err)
		var topics []string
		ok(t, json.Unmarshal([]byte(text), &topics))
		for _, topic := range topics {
			_, err := s.Do(soon(t), http.MethodDelete, topicPath(topic)+"?force=true", "")
			ok(t, err)
		}
	}
	ok(t, harness.Await(t.Context(), harness.Patience, "a broker without bundles", func(ctx context.Context) (bool, string) {
		shared, _, err := s.Owned(ctx)
		for _, name := range shared {
			if strings.Count(name, "/") == 2 { // others last as long as the broker's process
				_, err := s.Do(ctx, http.MethodPut, "/admin/v2/namespaces/"+name+"/unload", "")
				return false, fmt.Sprint(name, err)
			}
		}
		return err == nil, fmt.Sprint(err)
	}))
	return s
}

// topicPath is the admin path of a topic, persistent://tenant/ns/name.
func topicPath(topic string) string {
	parts := strings.SplitN(strings.TrimPrefix(topic, "persistent://"), "/", 3)
	return "/admin/v2/persistent/" + parts[0] + "/" + parts[1] + "/" + url.PathEscape(parts[2])
}

func (s *server) Open(t *testing.T) brokerapi.Broker {
	t.Helper()
	b, err := driver.New(driver.Config{AdminURL: s.URL(), Cluster: harness.PulsarCluster, StatusFile: s.StatusFile})
	ok(t, err)
	return b
}

func (s *server) Kill(t *testing.T)   { t.Helper(); ok(t, s.ApacheBroker.Kill()) }
func (s *server) Start(t *testing.T)  { t.Helper(); ok(t, s.ApacheBroker.Start(context.Background())) }
func (s *server) Freeze(t *testing.T) { t.Helper(); s.frozen = true; ok(t, s.ApacheBroker.Freeze()) }
func (s *server) Thaw(t *testing.T)   { t.Helper(); ok(t, s.ApacheBroker.Thaw()) }

func (s *server) Publish(topic string, data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	name, _ := harness.PulsarTopic(topic)
	return s.client.publish(ctx, name, data)
}

func (s *server) Count(topic string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	name, _ := harness.PulsarTopic(topic)
	text, err := s.Do(ctx, http.MethodGet, topicPath(name)+"/internalStats", "")
	if err != nil {
		return 0, err
	}
	var stats struct {
		Entries int `json:"numberOfEntries"`
	}
	return stats.Entries, json.Unmarshal([]byte(text), &stats)
}

func (s *server) AddForeign(t *testing.T) func() error {
	t.Fatal("a Pulsar broker's topics are all its cluster's")
	return nil
}

// Unit implements brokertest.Unit.
func (s *server) Unit(topic string) string {
	_, namespace := harness.PulsarTopic(topic)
	return "/" + strings.ReplaceAll(namespace, "/", "~") + "/" + harness.PulsarBundle(topic)
}

// Assign implements brokertest.Assigner: beside a neighbour the cluster chooses.
func (s *server) Assign(t *testing.T, topic string) {
	t.Helper()
	if s.neighbour != nil {
		leadBundle(t, s.ApacheBroker, topic)
	}
}

// Place implements brokertest.Placer: a client looks the topic up.
func (s *server) Place(t *testing.T, topic string) {
	t.Helper()
	if _, err := s.Owner(soon(t), topic); err != nil {
		t.Errorf("look up %s: %v", topic, err)
	}
}

// Litter looks a topic up whose name has a slash: Pulsar makes a namespace of the first form
// of it, and a bundle.
func (s *server) Litter(t *testing.T) {
	t.Helper()
	_, err := s.Owner(soon(t), "/public~default/we/ird")
	ok(t, err)
}

// GiveAway implements brokertest.Neighbour.
func (s *server) GiveAway(t *testing.T, topic string) {
	t.Helper()
	if s.neighbour == nil {
		var err error
		s.neighbour, err = s.cluster.StartBroker(t.Context())
		ok(t, err)
	}
	leadBundle(t, s.neighbour, topic)
}

// Receiver implements brokertest.Receiver.
func (s *server) Receiver() brokerapi.Peer { return brokerapi.Peer{ID: s.neighbour.Advertised()} }

func TestTheDriverConformsBesideARealBroker(t *testing.T) {
	a := cluster(t, harness.ApacheOptions{})
	b, err := a.StartBroker(t.Context())
	ok(t, err)
	makeNamespaces(t, b)
	s := &server{ApacheBroker: b, cluster: a, client: connect(t, b)}
	brokertest.Run(t, brokertest.Harness{
		Traits:    driver.Traits,
		Launch:    func(t *testing.T) brokertest.Server { return s.empty(t) },
		Odd:       harness.PulsarOdd,
		Retriable: func(error) bool { return true },
	})
}
