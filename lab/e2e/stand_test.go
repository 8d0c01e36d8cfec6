package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// The lease of most tests here: short, and within what `holdfast check` accepts.
const standTTL = 4 * time.Second

// stand is one etcd with its history, and what is started beside it.
type stand struct {
	*testing.T
	ctx     context.Context
	lab     *harness.Lab
	etcd    *harness.Etcd
	keys    harness.Keys
	history *harness.History // of every key
	flags   []string         // of each sidecar, for this etcd
}

func newStand(t *testing.T) *stand {
	t.Helper()
	return newStandOn(t, harness.EtcdOptions{})
}

func newStandOn(t *testing.T, o harness.EtcdOptions) *stand {
	t.Helper()
	s := &stand{T: t, ctx: t.Context(), lab: harness.ForTest(t)}
	var err error
	s.etcd, err = s.lab.StartEtcd(s.ctx, o)
	s.ok(err)
	s.watch()
	return s
}

// newSharedStand is for tests that do nothing to etcd but read and write keys.
func newSharedStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{T: t, ctx: t.Context(), lab: harness.ForTest(t)}
	var err error
	s.etcd, s.flags, err = shareEtcd(s.lab)
	s.ok(err)
	s.watch()
	return s
}

// watch starts the history, anew if there is one.
func (s *stand) watch() {
	s.Helper()
	var err error
	s.history, err = s.lab.Watch(s.ctx, s.etcd, "/")
	s.ok(err)
}

func (s *stand) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// couple is one broker and its sidecar.
type couple struct {
	*harness.Sidecar
	s      *stand
	id     string
	nats   *harness.NATS
	probes *harness.Recorder
	since  time.Time // the probes answered at that time
	// command is what the sidecar starts the broker with, if it does.
	command []string
}

func quickFlags() []string {
	return []string{
		"--lease-ttl", standTTL.String(),
		"--detachment-recover-window", "200ms",
		"--health-interval", "100ms",
		"--health-rise", "1",
	}
}

func (s *stand) broker(id string) *harness.NATS {
	s.Helper()
	n, err := s.lab.StartNATS(s.ctx, harness.NATSOptions{Name: id})
	s.ok(err)
	return n
}

// beside prepares a sidecar for a broker without starting it.
func (s *stand) beside(n *harness.NATS, flags ...string) *couple {
	s.Helper()
	sc, err := s.lab.NewSidecar(harness.SidecarOptions{
		Broker: n, Endpoints: []string{s.etcd.Endpoint()}, Flags: slices.Concat(quickFlags(), s.flags, flags),
	})
	s.ok(err)
	return &couple{Sidecar: sc, s: s, id: n.Name, nats: n}
}

// couple starts a broker and its sidecar and waits until the sidecar is ready.
func (s *stand) couple(id string, flags ...string) *couple {
	s.Helper()
	c := s.beside(s.broker(id), flags...)
	c.run()
	s.ok(c.AwaitReady(s.ctx, bound))
	return c
}

// run starts the sidecar and waits until its probes answer; from then on /live must
// be 200 until stayedLive is asked.
func (c *couple) run() {
	c.s.Helper()
	c.s.ok(c.Start())
	if c.probes == nil {
		c.probes = c.s.lab.Record(c.Sidecar)
	}
	c.s.ok(harness.Await(c.s.ctx, bound, "the probes of "+c.Name, func(ctx context.Context) (bool, string) {
		if !c.Running() {
			return true, "ended"
		}
		return c.Live(ctx), "not live"
	}))
	if c.Running() {
		c.since = c.awaitRecorded(time.Now()).At
	}
}

// awaitRecorded waits until the recorder has an answer from after t, and returns
// the span of equal answers that it belongs to, cut off at t.
func (c *couple) awaitRecorded(t time.Time) harness.ProbeSample {
	c.s.Helper()
	var last harness.ProbeSample
	c.s.ok(harness.Await(c.s.ctx, bound, "an answer of the probes", func(context.Context) (bool, string) {
		line := c.probes.Timeline()
		if len(line) == 0 {
			return false, "none"
		}
		last = line[len(line)-1]
		return last.Until.After(t), last.String()
	}))
	if last.At.Before(t) {
		last.At = t
	}
	return last
}

// stayedLive checks that /live answered 200 from the last start to now.
func (c *couple) stayedLive() {
	c.s.Helper()
	now := c.awaitRecorded(time.Now()).Until
	if err := c.probes.AlwaysLive(c.since, now); err != nil {
		c.s.Error(err)
	}
}

func (c *couple) await(what string, ok func(harness.Status) bool) harness.Status {
	c.s.Helper()
	st, err := c.Await(c.s.ctx, bound, what, ok)
	c.s.ok(err)
	return st
}

// terminate asks the sidecar to end and returns its exit code.
func (c *couple) terminate() int {
	c.s.Helper()
	ctx, cancel := context.WithTimeout(c.s.ctx, bound)
	defer cancel()
	c.s.ok(c.Stop(ctx))
	code, err := c.ExitCode()
	c.s.ok(err)
	return code
}

func (c *couple) registration() harness.RegistrationKey {
	c.s.Helper()
	reg, err := c.s.keys.ReadRegistration(c.s.ctx, c.s.etcd.Client(), c.id)
	c.s.ok(err)
	return reg
}

func (c *couple) state() harness.BrokerState {
	c.s.Helper()
	st, err := c.s.keys.ReadState(c.s.ctx, c.s.etcd.Client(), c.id)
	c.s.ok(err)
	return st
}

// metric is the value of one series, named as /metrics has it.
func (c *couple) metric(series string) float64 {
	c.s.Helper()
	text, err := c.Metrics(c.s.ctx)
	c.s.ok(err)
	v, ok := seriesValue(text, series)
	if !ok {
		c.s.Fatalf("%s is not in the metrics of %s", series, c.Name)
	}
	return v
}

func seriesValue(text, series string) (float64, bool) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, series+" ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		return v, err == nil
	}
	return 0, false
}

// awaitMetric waits until a series reaches a value.
func (c *couple) awaitMetric(series string, atLeast float64, bound time.Duration) {
	c.s.Helper()
	c.s.ok(harness.Await(c.s.ctx, bound, fmt.Sprintf("%s to reach %v", series, atLeast), func(ctx context.Context) (bool, string) {
		text, err := c.Metrics(ctx)
		if err != nil {
			return false, err.Error()
		}
		v, ok := seriesValue(text, series)
		return ok && v >= atLeast, fmt.Sprint(v)
	}))
}

// confirmed counts the renewals that etcd confirmed.
const confirmed = `holdfast_lease_renewals_total{result="confirmed"}`

// events are the sidecar's of a kind, of all its lives; of those that lead there, if any is named.
func (c *couple) events(kind string, to ...string) (found []harness.Event) {
	c.s.Helper()
	all, err := c.Events(c.s.ctx)
	c.s.ok(err)
	for _, e := range all {
		if e.Kind == kind && (len(to) == 0 || slices.Contains(to, e.To)) {
			found = append(found, e)
		}
	}
	return found
}

// told waits until a kind of event was told n times.
func (c *couple) told(n int, kind, to string) (found []harness.Event) {
	c.s.Helper()
	c.s.ok(harness.Await(c.s.ctx, bound, fmt.Sprintf("event %s/%s of %s, for the %d. time", kind, to, c.id, n), func(context.Context) (bool, string) {
		found = c.events(kind, to)
		return len(found) >= n, fmt.Sprint(c.Events(c.s.ctx))
	}))
	return found
}

// awaitChange waits for a change of a key later than a revision.
func (s *stand) awaitChange(what string, after int64, match func(harness.Change) bool) harness.Change {
	s.Helper()
	c, err := s.history.Await(s.ctx, bound, what, after+1, match)
	s.ok(err)
	return c
}

// changesOf is every change of one key after a revision.
func (s *stand) changesOf(key string, after int64) []harness.Change {
	var found []harness.Change
	for _, c := range s.history.Changes() {
		if c.Key == key && c.Revision > after {
			found = append(found, c)
		}
	}
	return found
}

// caughtUp waits until the history holds everything that was written before now.
func (s *stand) caughtUp() int64 {
	s.Helper()
	res, err := s.etcd.Client().Put(s.ctx, "/lab/mark", "")
	s.ok(err)
	s.awaitChange("the mark", res.Header.Revision-1, harness.PutKey("/lab/mark"))
	s.ok(s.history.Err())
	return res.Header.Revision
}

// ttlOf is what is left of a lease in seconds; not positive: it is gone.
func (s *stand) ttlOf(id clientv3.LeaseID) int64 {
	s.Helper()
	res, err := s.etcd.Client().TimeToLive(s.ctx, id)
	s.ok(err)
	return res.TTL
}
