package pulsar

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// The keys of a broker whose metadata store is etcd. They are ephemeral: under the lease
// of the broker's session, which is one for all of them.
const (
	// Registrations is the prefix of the brokers' registrations, {host:port} each.
	Registrations = "/loadbalance/brokers/"
	// Locks is the prefix of the bundles' locks, {tenant}/{ns}/0x…_0x… each.
	Locks = "/namespace/"
)

// LockKey is the key of the lock of a bundle; ok is false for whatever else a topic names.
func LockKey(topic string) (key string, ok bool) {
	p, err := parseTopic(topic)
	if err != nil || !p.bundle() {
		return "", false
	}
	return Locks + p.path(), true
}

// LockTopic is the bundle of a lock's key. Those that belong to one broker for its life
// have none.
func LockTopic(key string) (topic string, ok bool) {
	rest, ok := strings.CutPrefix(key, Locks)
	if !ok {
		return "", false
	}
	p, own, err := parseOwned(rest)
	if err != nil || own {
		return "", false
	}
	return p.topic(), true
}

// lock is the value of a bundle's lock, as far as it is read.
type lock struct {
	HTTPURL  string `json:"httpUrl"`
	HTTPSURL string `json:"httpUrlTls"`
}

// LockOwner is the host:port of the broker that a lock's value names. ok is false for what
// names none, which is somebody else's.
func LockOwner(value []byte) (brokerID string, ok bool) {
	var l lock
	if json.Unmarshal(value, &l) != nil {
		return "", false
	}
	for _, raw := range []string{l.HTTPURL, l.HTTPSURL} {
		if raw == "" {
			continue
		}
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return "", false
		}
		return u.Host, true
	}
	return "", false
}

// LockValue is what the broker of that registration writes into its own locks, so that it
// takes one that was written for it for its own.
func LockValue(registration []byte) ([]byte, error) {
	var r struct {
		NativeURL  string          `json:"pulsarServiceUrl"`
		NativeURLS string          `json:"pulsarServiceUrlTls"`
		HTTPURL    string          `json:"webServiceUrl"`
		HTTPSURL   string          `json:"webServiceUrlTls"`
		Listeners  json.RawMessage `json:"advertisedListeners"`
	}
	if err := json.Unmarshal(registration, &r); err != nil {
		return nil, fmt.Errorf("read the broker's registration: %w", err)
	}
	if r.NativeURL == "" && r.NativeURLS == "" || r.HTTPURL == "" && r.HTTPSURL == "" {
		return nil, errors.New("read the broker's registration: it does not say pulsarServiceUrl and webServiceUrl")
	}
	value := struct {
		NativeURL  string          `json:"nativeUrl,omitempty"`
		NativeURLS string          `json:"nativeUrlTls,omitempty"`
		HTTPURL    string          `json:"httpUrl,omitempty"`
		HTTPSURL   string          `json:"httpUrlTls,omitempty"`
		Disabled   bool            `json:"disabled"`
		Listeners  json.RawMessage `json:"advertisedListeners"`
	}{r.NativeURL, r.NativeURLS, r.HTTPURL, r.HTTPSURL, false, r.Listeners}
	if len(value.Listeners) == 0 {
		value.Listeners = json.RawMessage("{}")
	}
	return json.Marshal(value)
}
