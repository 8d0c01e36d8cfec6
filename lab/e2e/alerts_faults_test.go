package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"holdfast/lab/harness"
)

// The faults that alerts are named for, and what puts them right.

// brokerLanes are played on one etcd that is well, so each is one broker's trouble.
var brokerLanes = []laneOf{
	{name: "rights", prepare: func(l *lane) {
		l.n = l.broker(nodeOptions{Cuttable: true, Conf: withRights, Flags: []string{"--ownership-locks", "on", "--audit-interval", "500ms"}})
	}, faults: []fault{
		{
			what: "an assignment is deleted, and the broker does not let its sidecar quiesce the topic", on: "rights",
			alerts: []string{"HoldfastZombieOrphanTopics"}, never: []string{"HoldfastMassChangeHeld"},
			play:   func(l *lane) { l.denies("STREAM.UPDATE.>"); l.unassign(l.n.topics[0]) },
			repair: "the topic is assigned again",
			mend:   func(l *lane) { l.n.assign(l.n.topics[0]) },
		},
		{
			what: "somebody else takes the ownership lock of a topic that the broker cannot give up", on: "rights",
			alerts: []string{"HoldfastZombieForeignOwner"},
			play:   func(l *lane) { l.steals(l.n.topics[0]) },
			repair: "the other one gives the lock back",
			mend:   func(l *lane) { l.undo() },
		},
		{
			what: "a person drains the broker, which does not let its sidecar quiesce", on: "rights",
			alerts: []string{"HoldfastDrainStuck"}, never: []string{"HoldfastDrainedWaiting", "HoldfastRecoveryStuck"},
			play:   func(l *lane) { l.n.drains() },
			repair: "the sidecar may quiesce again",
			mend:   func(l *lane) { l.denies("NOTHING") },
		},
		{
			what: "the broker is cut off from etcd for longer than its lease; it cannot be quiesced, and nothing may stop it", on: "rights",
			alerts: []string{"HoldfastRenewalsFailing", "HoldfastEtcdUnreachable", "HoldfastLeaseNearEnd", "HoldfastLeaseLost", "HoldfastFencingFailed", "HoldfastZombieUnregistered"},
			never:  []string{"HoldfastManyLeasesLost", "HoldfastRecoveryStuck"},
			play: func(l *lane) {
				l.n.activate()
				l.denies("STREAM.UPDATE.>")
				l.must(l.n.link.Cut())
			},
			repair: "the sidecar may quiesce again, and the cut is healed",
			mend:   func(l *lane) { l.denies("NOTHING"); l.must(l.n.link.Heal()) },
		},
		{
			what: "it came back after others had lived on without it", on: "rights",
			alerts: []string{"HoldfastDrainedWaiting"},
			repair: "a person activates it", mend: func(l *lane) { l.n.activate() },
		},
	}},
	{name: "flap", prepare: func(l *lane) { l.n = l.broker(nodeOptions{Cuttable: true}) }, faults: []fault{{
		what: "the broker is cut off again and again until it is fenced", on: "flap",
		alerts: []string{"HoldfastLeaseFlapping", "HoldfastReadinessFlapping"}, never: []string{"HoldfastManyLeasesLost"},
		play: (*lane).flaps, repair: "the network holds",
	}}},
	{name: "guard", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{})
		l.n.sidecar.SetFlags("--broker-pid-file", l.n.nats.PIDFile)
		l.begin(l.n)
		l.n.awaitGuard(0)
	}, faults: []fault{
		{
			what: "the sidecar is frozen until its guard stops the broker", on: "guard", alerts: []string{"HoldfastDown"},
			play:   func(l *lane) { l.must(l.n.sidecar.Freeze()); l.n.exits() },
			repair: "the sidecar runs on", mend: func(l *lane) { l.must(l.n.sidecar.Thaw()) },
		},
		{
			what: "nobody starts the broker again", on: "guard", alerts: []string{"HoldfastGuardFired", "HoldfastBrokerDown"},
			repair: "somebody starts it, and half an hour passes", mend: func(l *lane) {
				l.must(l.n.nats.Launch())
				l.n.isBack()
			},
		},
	}},
	{name: "unguarded", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{})
		l.n.sidecar.SetFlags("--broker-pid-file", filepath.Join(l.Dir, "unguarded.pid"))
	}, faults: []fault{{
		what: "--broker-pid-file names a file that is not there", on: "unguarded", alerts: []string{"HoldfastUnguarded"},
		play:   func(l *lane) { l.begin(l.n) },
		repair: "the pid file is written", mend: func(l *lane) {
			l.must(os.WriteFile(filepath.Join(l.Dir, "unguarded.pid"), []byte(strconv.Itoa(l.n.nats.PID())), 0o600))
		},
	}}},
	{name: "topics", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{Conf: withRights, Flags: []string{"--load-timeout", "10m", "--audit-interval", "500ms"}, Topics: topics(20)})
		l.must(l.n.nats.Start(l.ctx))
	}, faults: []fault{
		{
			what: "somebody else's stream has the subject of an assigned topic when the sidecar starts", on: "topics",
			alerts: []string{"HoldfastRecoveryStuck", "HoldfastTopicsMissing"},
			play: func(l *lane) {
				l.occupies(harness.Subject(l.n.topics[0]))
				l.must(l.n.sidecar.Start())
				l.scrape(l.name, l.n)
			},
			repair: "their stream is deleted", mend: func(l *lane) { l.undo(); l.must(l.n.sidecar.AwaitReady(l.ctx, bound)) },
		},
		{
			what: "all assignments of the broker are deleted at once", on: "topics",
			alerts: []string{"HoldfastMassChangeHeld"}, never: []string{"HoldfastZombieOrphanTopics", "HoldfastOrphanTopics"},
			play:   func(l *lane) { l.unassign(l.n.topics...) },
			repair: "they are written again", mend: func(l *lane) { l.n.assign(l.n.topics...) },
		},
	}},
	{name: "lost", prepare: func(l *lane) { l.n = l.broker(nodeOptions{Flags: []string{"--audit-interval", "500ms"}}) }, faults: []fault{{
		what: "the stream of a topic is deleted by hand", on: "lost", alerts: []string{"HoldfastTopicMadeAnew"}, never: []string{"HoldfastBrokerDown"},
		play:   (*lane).deletesStream,
		repair: "half an hour passes",
	}}},
	{name: "full", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{})
		smallDisk(l.t, l.n.sidecar.StateDir)
		l.t.Cleanup(func() { l.should(l.n.sidecar.Kill()) })
		l.begin(l.n)
	}, faults: []fault{{
		what: "the disk of the state directory is full", on: "full", alerts: []string{"HoldfastStateUnsaved"}, never: []string{"HoldfastLeaseLost"},
		play: func(l *lane) {
			l.must(fill(filepath.Join(l.n.sidecar.StateDir, "ballast")))
			l.n.drains()
			l.n.activate()
		},
		repair: "it has room again", mend: func(l *lane) { l.must(os.Remove(filepath.Join(l.n.sidecar.StateDir, "ballast"))) },
	}}},
	{name: "refused", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{Conf: "max_connections: 3"})
		l.n.sidecar.SetFlags("--broker-pid-file", l.n.nats.PIDFile)
		l.begin(l.n)
		l.n.awaitGuard(0)
	}, faults: []fault{{
		what: "the sidecar is started again beside a broker that takes no more connections", on: "refused",
		alerts: []string{"HoldfastBrokerUnseen"}, never: []string{"HoldfastLeaseLost", "HoldfastGuardFired"},
		play: func(l *lane) {
			l.must(l.n.sidecar.Kill())
			l.occupiesConnections()
			l.must(l.n.sidecar.Start())
		},
		repair: "others leave it room", mend: func(l *lane) { l.undo() },
	}}},
	{name: "orphan", prepare: func(l *lane) { l.n = l.broker(nodeOptions{}) }, faults: []fault{{
		what: "a topic loses its assignment and nobody takes it", on: "orphan",
		alerts: []string{"HoldfastOrphanTopics"}, never: []string{"HoldfastZombieOrphanTopics"},
		play:   func(l *lane) { l.unassign(l.n.topics[0]) },
		repair: "it is assigned again", mend: func(l *lane) { l.n.assign(l.n.topics[0]) },
	}}},
	{name: "slow", prepare: func(l *lane) {
		var err error
		l.front, err = harness.NewFront(l.Lab, address(l.etcd.Port))
		l.must(err)
		l.n = l.broker(nodeOptions{TTL: 16 * time.Second, Etcd: "http://" + l.front.Addr()})
	}, faults: []fault{{
		what: "etcd answers late", on: "slow", alerts: []string{"HoldfastRenewalsSlow"},
		play:   func(l *lane) { l.front.Delay(time.Second) },
		repair: "it answers in time", mend: func(l *lane) { l.front.Delay(0) },
	}}},
	{name: "denied", prepare: func(l *lane) {
		var err error
		l.front, err = harness.NewFront(l.Lab, address(l.etcd.Port))
		l.must(err)
		l.n = l.broker(nodeOptions{TTL: time.Minute, Etcd: "http://" + l.front.Addr()})
	}, faults: []fault{{
		what: "etcd's address begins to want TLS", on: "denied", alerts: []string{"HoldfastEtcdRefuses"},
		play:   func(l *lane) { l.front.Lead(l.secured()) },
		repair: "it does not any more", mend: func(l *lane) { l.front.Lead(address(l.etcd.Port)) },
	}}},
	{name: "reload", prepare: func(l *lane) {
		l.n = l.prepareBroker(nodeOptions{})
		l.settings("health-fall: 3")
		l.n.sidecar.SetFlags("--config", l.config())
		l.begin(l.n)
	}, faults: []fault{{
		what: "the sidecar is told to read a settings file that cannot work", on: "reload", alerts: []string{"HoldfastConfigReloadFailed"},
		play:   func(l *lane) { l.settings("health-fall: many"); l.must(l.n.sidecar.Signal(syscall.SIGHUP)) },
		repair: "it is told again when the file is right", mend: func(l *lane) {
			l.settings("health-fall: 4")
			l.must(l.n.sidecar.Signal(syscall.SIGHUP))
		},
	}}},
	{name: "pod", prepare: func(l *lane) { l.n = l.broker(nodeOptions{Flags: []string{"--leave-registered"}}) }, faults: []fault{
		{
			what: "the sidecar is stopped and started again and again", on: "pod", alerts: []string{"HoldfastRestarting"}, never: []string{"HoldfastDown", "HoldfastLeaseLost"},
			play: (*lane).restarts, repair: "it stays, for half an hour",
		},
		{
			what: "the end of its pod drains the broker, and nobody activates it", on: "pod",
			alerts: []string{"HoldfastPodWaiting"}, never: []string{"HoldfastDrainedWaiting", "HoldfastDown"},
			play:   func(l *lane) { l.n.drainsFor("pod_stop") },
			repair: "a person activates it", mend: func(l *lane) { l.n.activate() },
		},
	}},
	{name: "twin", prepare: func(l *lane) {
		l.n = l.broker(nodeOptions{})
		l.other = l.prepareAs("twin-2", nodeOptions{Conf: `server_name: "twin"`})
	}, faults: []fault{{
		what: "a second broker is started under the same name, with its own sidecar", on: "twin-2", alerts: []string{"HoldfastSeveralOwners"},
		play:   func(l *lane) { l.other.start(); l.scrape(l.name, l.other) },
		repair: "the second one is taken away", mend: func(l *lane) {
			l.other.kill()
			l.forget(l.other)
		},
	}}},
	{name: "admin", prepare: (*lane).prepareReference, faults: []fault{
		{
			what: "the broker's admin API lists no topics and is healthy", on: "admin",
			alerts: []string{"HoldfastReconcileFailing", "HoldfastReconcileStale"}, never: []string{"HoldfastBrokerDown", "HoldfastTopicsMissing"},
			play:   func(l *lane) { l.mangler.Answer(l.refuses(http.MethodGet, "/topics")) },
			repair: "it lists them", mend: func(l *lane) { l.mangler.Answer(nil) },
		},
		{
			what: "the broker refuses the mode that a person asked for", on: "admin", alerts: []string{"HoldfastModeMismatch"},
			never: []string{"HoldfastDrainedWaiting"},
			play: func(l *lane) {
				l.mangler.Answer(l.refuses(http.MethodPut, "/mode"))
				l.n.drains()
			},
			repair: "it takes the mode", mend: func(l *lane) { l.mangler.Answer(nil) },
		},
	}},
}

// fleetLanes are played on an etcd of their own, which is what fails.
var fleetLanes = []laneOf{{name: "fleet", prepare: func(l *lane) {
	for i := range 3 {
		n := l.prepareAs(fmt.Sprintf("fleet-%d", i+1), nodeOptions{})
		l.all = append(l.all, n)
		l.begin(n)
	}
}, faults: []fault{
	{
		what: "etcd is killed, for longer than the leases", alerts: []string{"HoldfastManyLeasesLost", "HoldfastFleetAtRisk"},
		never:  []string{"HoldfastAbsent", "HoldfastRecoveryStuck", "HoldfastDrainedWaiting"},
		play:   (*lane).killEtcd,
		repair: "it is started again, and nobody does anything to a broker", mend: func(l *lane) {
			l.must(l.etcd.Start(l.ctx))
		},
	},
	{
		what: "all sidecars are killed at once", wide: true, alerts: []string{"HoldfastAbsent"},
		play: func(l *lane) {
			for _, n := range l.all {
				l.must(n.sidecar.Kill())
			}
		},
		repair: "they are started again", mend: func(l *lane) {
			for _, n := range l.all {
				l.must(n.sidecar.Start())
			}
		},
	},
}}}

// slowLanes are played with rules that are less fast, as what they are about has a pace
// of its own, and each on an etcd of its own.
var slowLanes = []laneOf{{name: "blind", prepare: func(l *lane) {
	l.kind = danubeKind // the one whose watches die with an interruption of etcd
	l.add("peer", nodeOptions{TTL: 20 * time.Second})
	l.n = l.broker(nodeOptions{TTL: 20 * time.Second, Flags: []string{"--audit-interval", "2s"}})
}, faults: []fault{{
	what: "etcd was restarted, and the broker does not see what it is assigned since", on: "blind", alerts: []string{"HoldfastZombieStaleView"},
	play: func(l *lane) {
		l.killEtcd()
		l.must(l.etcd.Start(l.ctx))
		l.n.await("attached", func(st harness.Status) bool { return st.Attachment == "attached" && st.Lease.FailureStreak == 0 })
		l.must(harness.Await(l.ctx, bound, "the broker to be blind", func(ctx context.Context) (bool, string) {
			st, err := l.n.danubed().Status(ctx)
			return st.WatchesDied, fmt.Sprint(st, err)
		}))
		l.n.assign("/default/unseen")
	},
	repair: "the broker is restarted", mend: func(l *lane) {
		l.must(l.n.broker.Kill())
		l.n.awaitNotReady()
		l.must(l.n.broker.Launch())
		l.n.awaitReady()
	},
}}},
	{name: "alone", prepare: func(l *lane) { l.n = l.broker(nodeOptions{}) }, faults: []fault{{
		what: "the only broker hangs", on: "alone", alerts: []string{"HoldfastIllTogether"}, never: []string{"HoldfastFencingFailed"},
		play:   func(l *lane) { l.must(l.n.nats.Freeze()) },
		repair: "it runs on", mend: func(l *lane) { l.must(l.n.nats.Thaw()) },
	}}},
	{name: "stuck", prepare: (*lane).prepareEcho, faults: []fault{{
		what: "the sidecar's loop runs no more, and its web listener answers", on: "stuck", alerts: []string{"HoldfastLoopStuck"},
		nearest: "Nothing outside stops the loop alone: it waits for no disk, network, log or guard. So what answers the " +
			"scrapes says again and again what the sidecar said last, which is what a loop that does not run looks like.",
		play: func(l *lane) {
			said, err := l.n.sidecar.Metrics(l.ctx)
			l.must(err)
			l.mangler.Answer(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/plain; version=0.0.4")
				_, _ = io.WriteString(w, said)
			})
		},
		repair: "the loop runs", mend: func(l *lane) { l.mangler.Answer(nil) },
	}}},
}

// secured is the address of somebody who speaks TLS.
func (l *lane) secured() string {
	ours, err := l.NewAuthority(l.name)
	l.must(err)
	cert, key, err := ours.Issue(l.name)
	l.must(err)
	pair, err := tls.LoadX509KeyPair(cert, key)
	l.must(err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	l.must(err)
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0)}
	l.t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String()
}
