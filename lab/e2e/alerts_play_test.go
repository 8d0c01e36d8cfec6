package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

// How the faults are played.

// withRights is a NATS configuration in which rights can be taken from the sidecar.
const withRights = `
accounts { A { jetstream: enabled, users: [ { user: a, password: a,
  permissions: { publish: { deny: ["$JS.API.NOTHING"] } } } ] } }
no_auth_user: a`

func (l *lane) prepareAs(id string, o nodeOptions) *node { l.t.Helper(); return l.prepare(id, o) }

// prepareBroker makes the broker that has the lane's name, of which nothing runs yet.
func (l *lane) prepareBroker(o nodeOptions) *node { l.t.Helper(); return l.prepare(l.name, o) }

// begin starts a broker, and has it scraped when it is ready.
func (l *lane) begin(n *node) {
	l.t.Helper()
	n.start()
	n.awaitReady()
	n.equip()
	l.scrape(l.name, n)
}

// broker makes and begins the broker that has the lane's name.
func (l *lane) broker(o nodeOptions) *node {
	l.t.Helper()
	n := l.prepareBroker(o)
	l.begin(n)
	return n
}

// denies takes the right to use that part of the JetStream API from everybody, and gives
// back the one that was taken before.
func (l *lane) denies(api string) {
	l.t.Helper()
	conf := filepath.Join(l.Dir, l.n.id, "nats.conf")
	text, err := os.ReadFile(conf)
	l.must(err)
	before, rest, ok := strings.Cut(string(text), `"$JS.API.`)
	_, after, closed := strings.Cut(rest, `"`)
	if !ok || !closed {
		l.t.Fatalf("%s gives no rights: %s", conf, text)
	}
	l.must(os.WriteFile(conf, []byte(before+`"$JS.API.`+api+`"`+after), 0o600))
	l.must(l.n.nats.Signal(syscall.SIGHUP))
}

func (l *lane) unassign(topics ...string) {
	l.t.Helper()
	for _, topic := range topics {
		_, err := l.etcd.Client().Delete(l.ctx, l.keys.Assignment(l.n.id, topic))
		l.must(err)
	}
}

// steals has another broker own a topic until undo.
func (l *lane) steals(topic string) {
	l.t.Helper()
	lease, err := l.etcd.Client().Grant(l.ctx, 600)
	l.must(err)
	_, err = l.etcd.Client().Put(l.ctx, "/cluster/owners"+topic,
		`{"broker_id":"thief","incarnation":"another","epoch":1}`, clientv3.WithLease(lease.ID))
	l.must(err)
	l.undo = func() {
		_, err := l.etcd.Client().Revoke(l.ctx, lease.ID)
		l.must(err)
	}
}

// occupies makes a stream that is not Holdfast's, until undo.
func (l *lane) occupies(subject string) {
	l.t.Helper()
	c, err := l.n.nats.Connect()
	l.must(err)
	l.t.Cleanup(c.Close)
	js, err := c.JetStream()
	l.must(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "theirs", Subjects: []string{subject}})
	l.must(err)
	l.undo = func() { l.must(js.DeleteStream("theirs")) }
}

// deletesStream takes a topic's stream away, with all that is in it.
func (l *lane) deletesStream() {
	l.t.Helper()
	c, err := l.n.nats.Connect()
	l.must(err)
	defer c.Close()
	js, err := c.JetStream()
	l.must(err)
	l.must(js.DeleteStream(streamOf(l.n.topics[0])))
}

// occupiesConnections takes every connection that the broker has room for, until undo.
func (l *lane) occupiesConnections() {
	l.t.Helper()
	full, err := occupy(l.ctx, l.n.nats)
	l.must(err)
	l.undo = func() {
		for _, c := range full {
			c.Close()
		}
	}
}

// drains is a person's word. The verb's own exit code says whether the drain ended.
func (n *node) drains() { n.t.Helper(); n.drainsFor("disk swap") }

func (n *node) drainsFor(reason string) {
	n.t.Helper()
	_, err := n.sidecar.Verb(n.ctx, "drain", "--reason", reason, "--timeout", "1s")
	n.must(err)
	n.await("the word to be taken", func(st harness.Status) bool { return st.Mode != "active" })
}

// exits waits for the end of the broker's process.
func (n *node) exits() {
	n.t.Helper()
	select {
	case <-n.nats.Exited():
	case <-time.After(n.ttl + bound):
		n.t.Fatal("the broker was not stopped")
	}
}

// killEtcd ends the etcd of a lane that is alone on it: a broker that another lane starts at
// that moment would end, too.
func (l *lane) killEtcd() {
	l.t.Helper()
	if l.shared {
		l.t.Fatal("other lanes are played on the etcd that is to be killed")
	}
	l.must(l.etcd.Kill())
}

// flaps cuts the broker off until it is fenced and heals the cut before the lease ends,
// until both alerts fire.
func (l *lane) flaps() {
	l.t.Helper()
	for end := time.Now().Add(alertBound); time.Now().Before(end); {
		firing := l.firing("cluster=" + l.name)
		if slices.ContainsFunc(firing, isNamed("HoldfastLeaseFlapping")) && slices.ContainsFunc(firing, isNamed("HoldfastReadinessFlapping")) {
			return
		}
		l.must(l.n.link.Cut())
		l.n.awaitNotReady()
		l.must(l.n.link.Heal())
		l.n.isBack()
	}
}

// restarts stops the sidecar and starts it until the alert about that fires.
func (l *lane) restarts() {
	l.t.Helper()
	for end := time.Now().Add(alertBound); time.Now().Before(end); {
		if slices.ContainsFunc(l.firing("cluster="+l.name), isNamed("HoldfastRestarting")) {
			return
		}
		began := time.Now()
		l.must(l.n.sidecar.Stop(l.ctx))
		l.must(l.n.sidecar.Start())
		l.n.isBack()
		l.longest = max(l.longest, time.Since(began))
	}
	standstill.Check(l.t, l.slowRestarts("HoldfastRestarting does not fire"))
}

// slowRestarts is unjudged where a restart took so long that HoldfastDown may fire for it.
func (l *lane) slowRestarts(what any) error {
	const down = 2 * time.Minute                    // the for of HoldfastDown
	if l.longest < down/alertFaster-2*alertScrape { // it is away between two scrapes, and the rules have a pace of their own
		return nil
	}
	return fmt.Errorf("%w: %v: a restart took %v, and %v are %v here", standstill.ErrUnjudged, what, l.longest.Round(time.Millisecond), down, down/alertFaster)
}

// isBack waits until the broker is ready, with a person's word if it needs one: on a slow
// machine a lease may end that would not on another.
func (n *node) isBack() {
	n.t.Helper()
	st := n.await("a decision", func(st harness.Status) bool {
		return st.Attachment == "attached" && (st.Ready.OK || st.Mode == "drained")
	})
	if st.Mode == "drained" {
		n.activate()
	}
}

// config is the settings file of the lane's sidecar.
func (l *lane) config() string { return filepath.Join(l.Dir, l.name+".yaml") }

func (l *lane) settings(text string) {
	l.t.Helper()
	l.must(os.WriteFile(l.config(), []byte(text+"\n"), 0o600))
}

// prepareReference begins a broker that is steered, with a mangler before its admin API.
func (l *lane) prepareReference() {
	l.t.Helper()
	l.kind = httpKind
	l.n = l.prepareBroker(nodeOptions{Flags: []string{"--audit-interval", "500ms"}})
	var err error
	l.mangler, err = harness.NewMangler(l.Lab, l.n.broker.(httpBroker).URL())
	l.must(err)
	l.n.sidecar.SetFlags("--broker-admin", l.mangler.URL())
	l.begin(l.n)
}

// refuses answers that path of the admin API with an error, and everything else as the
// broker does.
func (l *lane) refuses(method, path string) http.HandlerFunc {
	l.t.Helper()
	admin, err := url.Parse(l.n.broker.(httpBroker).URL())
	l.must(err)
	pass := httputil.NewSingleHostReverseProxy(admin)
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method && strings.HasSuffix(r.URL.Path, path) {
			http.Error(w, `{"code":"internal","message":"it does not want to"}`, http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	}
}

// prepareEcho begins a broker whose sidecar is scraped through a mangler.
func (l *lane) prepareEcho() {
	l.t.Helper()
	l.n = l.prepareBroker(nodeOptions{})
	l.n.start()
	l.n.awaitReady()
	var err error
	l.mangler, err = harness.NewMangler(l.Lab, l.n.sidecar.WebURL())
	l.must(err)
	l.must(l.prom.Target(alertJob, strings.TrimPrefix(l.mangler.URL(), "http://"), map[string]string{"cluster": l.name, "instance": l.n.id}))
	l.must(harness.Await(l.ctx, alertBound, "the loop to be seen running", func(ctx context.Context) (bool, string) {
		v, err := l.prom.Query(ctx, `changes(holdfast_agent_loop_last_run_timestamp_seconds{instance="stuck"}[1m]) > 1`)
		return len(v) > 0, fmt.Sprint(v, err)
	}))
}
