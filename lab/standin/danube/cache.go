package danube

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// cache is what the broker believes about the metadata: all of it at the start, and then
// what a watch tells. If the watch dies it stays as it is.
type cache struct {
	mu   sync.Mutex
	keys map[string][]byte
}

var cachedPrefixes = []string{"/cluster/", topicsPrefix}

// fillCache reads everything and returns the watches that follow it.
func fillCache(ctx context.Context, s *store) (*cache, []<-chan event, error) {
	c := &cache{keys: map[string][]byte{}}
	var watches []<-chan event
	for _, prefix := range cachedPrefixes {
		keys, revision, err := s.list(ctx, prefix)
		if err != nil {
			return nil, nil, err
		}
		for key, value := range keys {
			c.keys[key] = value
		}
		w, err := s.watch(ctx, prefix, revision)
		if err != nil {
			return nil, nil, err
		}
		watches = append(watches, w)
	}
	return c, watches, nil
}

// follow applies a watch until it dies.
func (c *cache) follow(events <-chan event) {
	for e := range events {
		c.mu.Lock()
		if e.deleted {
			delete(c.keys, e.key)
		} else {
			c.keys[e.key] = e.value
		}
		c.mu.Unlock()
	}
}

func (c *cache) get(key string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.keys[key]
	return v, ok
}

// below are the keys with the prefix, sorted.
func (c *cache) below(prefix string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []string
	for key := range c.keys {
		if strings.HasPrefix(key, prefix) {
			found = append(found, key)
		}
	}
	slices.Sort(found)
	return found
}

// isMade says whether the topic's metadata is there, without which it cannot be loaded.
func (c *cache) isMade(topic string) bool {
	v, _ := c.get(topicKey(topic, "delivery"))
	return string(v) == `"Reliable"`
}

// brokers are the ids that are registered.
func (c *cache) brokers() []string {
	var ids []string
	for _, key := range c.below(registerPrefix) {
		ids = append(ids, strings.TrimPrefix(key, registerPrefix))
	}
	return ids
}

func (c *cache) registration(id string) (r registration, ok bool) {
	v, ok := c.get(registerKey(id))
	return r, ok && json.Unmarshal(v, &r) == nil
}

// assigned are the topics of a broker.
func (c *cache) assigned(id string) []string {
	var found []string
	for _, key := range c.below(assignmentsPrefix(id)) {
		if _, topic, ok := splitAssignment(key); ok {
			found = append(found, topic)
		}
	}
	return found
}

// owner is the broker that the topic is assigned to.
func (c *cache) owner(topic string) (id string, ok bool) {
	for _, key := range c.below(brokersPrefix) {
		if id, t, is := splitAssignment(key); is && t == topic {
			return id, true
		}
	}
	return "", false
}

func (c *cache) leader() (string, bool) {
	v, ok := c.get(leaderKey)
	return string(v), ok
}
