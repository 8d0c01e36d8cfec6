// Package reference is a small broker that keeps Holdfast's HTTP contract, to be read by
// whoever writes the server side for a broker of their own. The contract itself is
// brokerapi/httpapi/openapi.yaml.
//
//	contract.go  what is asked and answered, and each refusal
//	server.go    paths, methods, the token, and requests that must not pass
//	topics.go    what a topic goes through: the part that a real broker has already
//	move.go      how a topic goes from one of these brokers to another
//	store.go     files, so that a broker that is killed has what it had
//	client.go    an ordinary client's side, which is not part of the contract
//
// It is strict, because a broker that guesses what Holdfast meant acts on a guess: an
// unknown field, an unknown parameter or a second value is refused.
//
// What it stores survives kill -9 of the process, and not the loss of power: only what is sealed or
// copied is synced.
package reference

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Capabilities are the calls that this broker can be without.
var Capabilities = []string{"quiesce", "unload", "mode", "move"}

// Options are what New needs.
type Options struct {
	Name         string   // the broker's name, the same in all its lives
	Dir          string   // its data
	TokenFile    string   // the bearer token that it wants; empty: none
	Capabilities []string // some of Capabilities; nil: all
}

// Broker is one life of a broker.
type Broker struct {
	o         Options
	instance  string
	startedAt time.Time
	mux       *http.ServeMux

	mu     sync.Mutex // one at a time: simple, and fast enough here
	mode   mode
	topics map[string]*topic
	works  map[string]*work          // by topic: a copy or a comparison that goes on
	active map[string]map[string]int // by topic and subscription: consumers at work
}

// New reads what is in the directory, which it makes if it is not there.
func New(o Options) (*Broker, error) {
	if o.Capabilities == nil {
		o.Capabilities = Capabilities
	}
	for _, c := range o.Capabilities {
		if !slices.Contains(Capabilities, c) {
			return nil, fmt.Errorf("capability %q: want some of %q", c, Capabilities)
		}
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	b := &Broker{o: o, instance: rand.Text(), startedAt: time.Now(), works: map[string]*work{}, active: map[string]map[string]int{}}
	if err := b.read(); err != nil {
		return nil, err
	}
	b.mux = b.routes()
	return b, nil
}

func (b *Broker) can(capability string) bool { return slices.Contains(b.o.Capabilities, capability) }
