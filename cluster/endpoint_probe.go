package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
)

const (
	// probeTimeout bounds one question to one endpoint, its connection included.
	probeTimeout = 3 * time.Second
	// probeSpread is how far apart the first probes of a fleet that starts at once are.
	probeSpread = time.Second
	// noLease is an id that etcd gives to no lease. The answer "not found" comes from the
	// leader, so it proves as much as a renewal does. The sidecar's own lease must not be
	// used: a probe would keep a lease alive whose renewals have stopped on purpose.
	noLease = 1
)

// Run asks each endpoint that nobody has asked for a while, so that the line knows where
// to go when the one in use fails, until ctx ends. Probes have connections of their own
// and delay no renewal. With one endpoint there is nothing to choose, and nothing is asked.
func (l *Line) Run(ctx context.Context) error {
	if len(l.endpoints) == 1 {
		<-ctx.Done()
		return nil
	}
	var each sync.WaitGroup
	for i := range l.endpoints {
		each.Go(func() { l.watchEndpoint(ctx, i) })
	}
	each.Wait()
	return nil
}

// watchEndpoint probes one endpoint whenever that is due.
func (l *Line) watchEndpoint(ctx context.Context, i int) {
	due := time.NewTimer(rand.N(probeSpread))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.life.Done():
			return
		case <-l.kick[i]:
		case <-due.C:
			if l.untilProbe(i) <= probeEvery/4 { // less than the jitter: else somebody has asked meanwhile
				l.probe(ctx, i)
			}
		}
		wait := l.untilProbe(i)
		if wait > 0 {
			wait = jitter(wait)
		}
		due.Reset(wait)
	}
}

func (l *Line) untilProbe(i int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return l.scores[i].probeIn(now, anyUp(l.scores, now))
}

// probe asks one endpoint once. What it answers goes into its score like any answer.
func (l *Line) probe(ctx context.Context, i int) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	k, err := l.lend(i)
	if err != nil {
		return // closed
	}
	defer l.giveBack(k)
	// First the connection, so that the time of the answer is its own. If it fails, so
	// does the question, and says why.
	for state := k.conn.GetState(); state != connectivity.Ready && state != connectivity.TransientFailure; state = k.conn.GetState() {
		k.conn.Connect()
		if !k.conn.WaitForStateChange(ctx, state) {
			break
		}
	}
	_, _ = l.client.keepAlive(withTrip(ctx, &trip{link: k, tried: make([]bool, len(l.endpoints))}), noLease)
}

// EndpointState is one endpoint of a line and what its answers say.
type EndpointState struct {
	URL string // as configured; it cannot hold a password
	Up  bool   // its last answer was good and recent
}

// Endpoints is the state of every endpoint, in the order of the configuration. One that
// accepts connections and has no leader is not up.
func (l *Line) Endpoints() []EndpointState {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]EndpointState, len(l.endpoints))
	for i := range list {
		list[i] = EndpointState{URL: l.endpoints[i].url, Up: l.scores[i].up(time.Now())}
	}
	return list
}
