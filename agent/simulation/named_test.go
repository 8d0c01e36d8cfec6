package simulation

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/raced"
)

// Schedules that once failed, or that a broken rule fails and chance finds rarely.
var named = []struct {
	name string
	schedule
}{
	// Brokers that come back serve at once what was given to others meanwhile.
	{"a whole fleet restarts while its topics move", schedule{Seed: 18, Settings: settings{Nodes: 3, Topics: 8,
		TTL: 16 * time.Second, Recover: 300 * time.Millisecond, Policy: "drain", Forgets: true, Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 45463 * time.Millisecond, Do: restartFleet, Node: 1, For: 18036 * time.Millisecond, Arg: 1},
		}}},
	// The watch was blind during the cut, and does not know it yet.
	{"topics move while two brokers are cut off", schedule{Seed: 107, Settings: settings{Nodes: 4, Topics: 3,
		TTL: 3 * time.Second, Margin: 300 * time.Millisecond, Policy: "reconnect", Placer: true, Latency: time.Millisecond},
		Events: []event{
			{At: 11701 * time.Millisecond, Do: cut, Node: 1, For: 7815 * time.Millisecond},
			{At: 11701 * time.Millisecond, Do: cut, Node: 2, For: 7815 * time.Millisecond},
			{At: 17252 * time.Millisecond, Do: newLeader, Node: 1},
		}}},
	// Its calls fail beside a peer that is well, for three leases.
	{"a broker says that it ends, and is back within its lease", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 3 * time.Second, Policy: "drain", Stop: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: lameDuck, Node: 0, For: 9 * time.Second, Arg: 500},
		}}},
	// Renewals are answered late, and then not at all.
	{"silence after slow answers", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 3 * time.Second, Margin: 300 * time.Millisecond, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 4 * time.Second, Do: slowReplies, Node: 0, For: 6 * time.Second, Arg: 450},
			{At: 10 * time.Second, Do: cut, Node: 0, For: 6 * time.Second},
			{At: 10100 * time.Millisecond, Do: cut, Node: 1, For: 6 * time.Second},
			{At: 9 * time.Second, Do: slowReplies, Node: 1, For: 6 * time.Second, Arg: 450},
		}}},
	// The lease lives, and the key that was under it does not.
	{"a key is deleted behind a cut", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 32 * time.Second, Margin: 16 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 4 * time.Second, Do: cut, Node: 0, For: 20 * time.Second},
			{At: 5 * time.Second, Do: deleteKey, Node: 0},
			{At: 23 * time.Second, Do: busyStore, Node: 0, For: 6 * time.Second},
		}}},
	// What does not run has no registration, and others must see that.
	{"a broker stays down", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 8 * time.Second, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 4 * time.Second, Do: crashBroker, Node: 0, For: 60 * time.Second},
		}}},
	// Between the look and the transaction, on a slow way, a person speaks.
	{"a person drains while the broker registers again", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 32 * time.Second, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 2 * time.Second, Do: slowNetwork, Node: 0, For: 15 * time.Second, Arg: 450},
			{At: 5 * time.Second, Do: revokeLease, Node: 0},
			{At: 6500 * time.Millisecond, Do: drainKey, Node: 0},
		}}},
	// The watch shows the second loss before the answer about the first is complete.
	{"a key is deleted while the broker registers again", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 3,
		TTL: 8 * time.Second, Margin: 300 * time.Millisecond, Policy: "reconnect", Latency: 40 * time.Millisecond},
		Events: []event{
			{At: 41097 * time.Millisecond, Do: revokeLease, Node: 1},
			{At: 41411 * time.Millisecond, Do: deleteKey, Node: 1},
		}}},
	// The word is on its way while the registrar confirms what it has looked at before.
	{"a person drains while the broker comes back on a slow way", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 16 * time.Second, Margin: 8 * time.Second, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 2 * time.Second, Do: slowNetwork, Node: 0, For: 58 * time.Second, Arg: 450},
			{At: 10 * time.Second, Do: cut, Node: 0, For: 10 * time.Second},
			{At: 21400 * time.Millisecond, Do: drainKey, Node: 0},
		}}},
	// The guard has stopped the broker, and another process of it is there at the thaw.
	{"a sidecar sleeps over its lease and its broker", schedule{Seed: 703800, Settings: settings{Nodes: 3, Topics: 1,
		TTL: 3 * time.Second, Recover: 300 * time.Millisecond, Policy: "reconnect", Stop: true, Placer: true, Latency: time.Millisecond},
		Events: []event{
			{At: 21591 * time.Millisecond, Do: freezeSidecar, Node: 1, For: 3242 * time.Millisecond},
		}}},
	{"a sidecar sleeps for long, and its broker starts at the end", schedule{Seed: 700637, Settings: settings{Nodes: 2, Topics: 3,
		TTL: 8 * time.Second, Margin: 300 * time.Millisecond, Grace: 2 * time.Second, Policy: "reconnect", Stop: true, Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 809 * time.Millisecond, Do: crashBroker, Node: 1, For: 8087 * time.Millisecond},
			{At: 28104 * time.Millisecond, Do: activate, Node: 1},
			{At: 52370 * time.Millisecond, Do: freezeSidecar, Node: 1, For: 8574 * time.Millisecond},
		}}},
	// The ladder has begun and will not be finished: only the guard is left.
	{"a sidecar freezes on the ladder", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 32 * time.Second, Margin: 16 * time.Second, Policy: "drain", Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 20 * time.Second, Do: cut, Node: 0, For: 60 * time.Second},
			{At: 30 * time.Second, Do: slowBroker, Node: 0, For: 60 * time.Second, Arg: 900},
			{At: 34900 * time.Millisecond, Do: freezeSidecar, Node: 0, For: 30 * time.Second},
		}}},
	// The second process comes up, is registered and waits to be attached, over and over.
	{"a guard stops a broker that waits to be attached", schedule{Seed: 4000766, Settings: settings{Nodes: 2, Topics: 3,
		TTL: 2 * time.Second, Margin: 300 * time.Millisecond, Recover: 2 * time.Second, Policy: "drain", Stop: ladderStops, Placer: true, Latency: time.Millisecond},
		Events: []event{
			{At: 4886 * time.Millisecond, Do: suspend, Node: 1, For: 3079 * time.Millisecond},
			{At: 11898 * time.Millisecond, Do: crashBroker, Node: 1, For: 942 * time.Millisecond},
		}}},
	// A stop takes longer than a process takes to answer, and the next one is booting then.
	{"a guard stops a broker that boots, because the one before was quiesced", schedule{Seed: 6000676, Settings: settings{Nodes: 4, Topics: 6,
		TTL: 3 * time.Second, Recover: 300 * time.Millisecond, Policy: "shutdown", Stop: ladderStops, Locks: true, Latency: 40 * time.Millisecond, Boot: 2 * time.Second},
		Events: []event{
			{At: 21093 * time.Millisecond, Do: freezeBoth, Node: 2, For: 3033 * time.Millisecond},
		}}},
	// The sidecar of before was killed, and this one finds no etcd and a broker that refuses.
	{"a sidecar finds a broker that it cannot fence", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 8 * time.Second, Policy: "drain", Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 20 * time.Second, Do: cut, Node: 0, For: 30 * time.Second},
			{At: 21 * time.Second, Do: crashNode, Node: 0, For: time.Second},
			{At: 20 * time.Second, Do: refuseQuiesce, Node: 0, For: 30 * time.Second},
		}}},
	// It answers just before that lease must be over, and is registered just after.
	{"a host crashes, and its broker boots until the lease of the one before ends", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 8 * time.Second, Margin: 2850 * time.Millisecond, Policy: "drain", Stop: ladderStops, Unquiesced: true, Latency: 40 * time.Millisecond, Boot: 3700 * time.Millisecond},
		Events: []event{
			{At: 20 * time.Second, Do: crashNode, Node: 0},
		}}},
	// Nobody is there to renew, and the process that comes up knows of nothing.
	{"a broker restarts behind a cut", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 4 * time.Second, Policy: "drain", Forgets: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 20 * time.Second, Do: cut, Node: 0, For: 25 * time.Second},
			{At: 30 * time.Second, Do: crashBroker, Node: 0, For: time.Second},
		}}},
	// The revocation waits for an etcd that is away, and nobody fences what starts then.
	{"a broker starts while its sidecar leaves in vain", schedule{Seed: 703372, Settings: settings{Nodes: 3, Topics: 6,
		TTL: 8 * time.Second, Margin: 4 * time.Second, Policy: "drain", Stop: ladderStops, Locks: true, Latency: 10 * time.Millisecond},
		Events: []event{
			{At: 12929 * time.Millisecond, Do: crashBroker, Node: 0, For: 7938 * time.Millisecond},
			{At: 19135 * time.Millisecond, Do: cut, Node: 0, For: 9538 * time.Millisecond},
			{At: 19478 * time.Millisecond, Do: stopSidecar, Node: 0, For: 1536 * time.Millisecond},
		}}},
	// What was read says that there are others, and what could not be read says nothing.
	{"brokers come back while every other request fails", schedule{Seed: 1, Settings: settings{Nodes: 4, Topics: 4,
		TTL: 16 * time.Second, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 5 * time.Second, Do: flakyStore, Node: 0, For: 50 * time.Second},
			{At: 6 * time.Second, Do: revokeLease, Node: 0},
			{At: 12 * time.Second, Do: revokeLease, Node: 1},
			{At: 18 * time.Second, Do: revokeLease, Node: 2},
			{At: 24 * time.Second, Do: revokeLease, Node: 3},
			{At: 29 * time.Second, Do: activate, Node: 0},
			{At: 30 * time.Second, Do: activate, Node: 1},
			{At: 36 * time.Second, Do: revokeLease, Node: 0},
			{At: 42 * time.Second, Do: revokeLease, Node: 1},
		}}},
	// A sidecar hears that nobody has them, and not yet that they are gone.
	{"topics are deleted while watches end", schedule{Seed: 1, Settings: settings{Nodes: 3, Topics: 24,
		TTL: 32 * time.Second, Policy: "drain", Locks: true, Latency: 200 * time.Microsecond, Failover: "move"},
		Events: []event{
			{At: 5 * time.Second, Do: flakyStore, Node: 0, For: 60 * time.Second},
			{At: 6000 * time.Millisecond, Do: newLeader}, {At: 6050 * time.Millisecond, Do: deleteTopic, Arg: 0},
			{At: 8400 * time.Millisecond, Do: newLeader}, {At: 8450 * time.Millisecond, Do: deleteTopic, Arg: 1},
			{At: 10800 * time.Millisecond, Do: newLeader}, {At: 10850 * time.Millisecond, Do: deleteTopic, Arg: 2},
			{At: 13200 * time.Millisecond, Do: newLeader}, {At: 13250 * time.Millisecond, Do: deleteTopic, Arg: 3},
			{At: 15600 * time.Millisecond, Do: newLeader}, {At: 15650 * time.Millisecond, Do: deleteTopic, Arg: 4},
			{At: 18000 * time.Millisecond, Do: newLeader}, {At: 18050 * time.Millisecond, Do: deleteTopic, Arg: 5},
			{At: 20400 * time.Millisecond, Do: newLeader}, {At: 20450 * time.Millisecond, Do: deleteTopic, Arg: 6},
			{At: 22800 * time.Millisecond, Do: newLeader}, {At: 22850 * time.Millisecond, Do: deleteTopic, Arg: 7},
			{At: 25200 * time.Millisecond, Do: newLeader}, {At: 25250 * time.Millisecond, Do: deleteTopic, Arg: 8},
			{At: 27600 * time.Millisecond, Do: newLeader}, {At: 27650 * time.Millisecond, Do: deleteTopic, Arg: 9},
			{At: 30000 * time.Millisecond, Do: newLeader}, {At: 30050 * time.Millisecond, Do: deleteTopic, Arg: 10},
			{At: 32400 * time.Millisecond, Do: newLeader}, {At: 32450 * time.Millisecond, Do: deleteTopic, Arg: 11},
			{At: 34800 * time.Millisecond, Do: newLeader}, {At: 34850 * time.Millisecond, Do: deleteTopic, Arg: 12},
			{At: 37200 * time.Millisecond, Do: newLeader}, {At: 37250 * time.Millisecond, Do: deleteTopic, Arg: 13},
			{At: 39600 * time.Millisecond, Do: newLeader}, {At: 39650 * time.Millisecond, Do: deleteTopic, Arg: 14},
			{At: 42000 * time.Millisecond, Do: newLeader}, {At: 42050 * time.Millisecond, Do: deleteTopic, Arg: 15},
			{At: 44400 * time.Millisecond, Do: newLeader}, {At: 44450 * time.Millisecond, Do: deleteTopic, Arg: 16},
			{At: 46800 * time.Millisecond, Do: newLeader}, {At: 46850 * time.Millisecond, Do: deleteTopic, Arg: 17},
			{At: 49200 * time.Millisecond, Do: newLeader}, {At: 49250 * time.Millisecond, Do: deleteTopic, Arg: 18},
			{At: 51600 * time.Millisecond, Do: newLeader}, {At: 51650 * time.Millisecond, Do: deleteTopic, Arg: 19},
			{At: 54000 * time.Millisecond, Do: newLeader}, {At: 54050 * time.Millisecond, Do: deleteTopic, Arg: 20},
			{At: 56400 * time.Millisecond, Do: newLeader}, {At: 56450 * time.Millisecond, Do: deleteTopic, Arg: 21},
			{At: 58800 * time.Millisecond, Do: newLeader}, {At: 58850 * time.Millisecond, Do: deleteTopic, Arg: 22},
			{At: 61200 * time.Millisecond, Do: newLeader}, {At: 61250 * time.Millisecond, Do: deleteTopic, Arg: 23},
		}}},
	// The locks of what is on its way are free before the broker was listed.
	{"two brokers come back while a topic is on its way", schedule{Seed: 3, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 16 * time.Second, Margin: 300 * time.Millisecond, Recover: 2 * time.Second, Policy: "drain", Locks: true, Latency: 200 * time.Microsecond, Failover: "move"},
		Events: []event{
			{At: 8150 * time.Millisecond, Do: cutReplies, Node: 0, For: 41745 * time.Millisecond},
			{At: 43796 * time.Millisecond, Do: flakyStore, Node: 0, For: 13250 * time.Millisecond},
			{At: 46831 * time.Millisecond, Do: deleteKey, Node: 1},
		}}},
	// The taker has seen the other go, and not yet that it is back.
	{"a broker returns while its topics are taken", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 8,
		TTL: 32 * time.Second, Policy: "drain", Locks: true, Latency: 200 * time.Microsecond, Failover: "move"},
		Events: []event{
			{At: 5 * time.Second, Do: slowNetwork, Node: 1, For: 25 * time.Second, Arg: 900},
			{At: 15 * time.Second, Do: stopSidecar, Node: 0, For: 2400 * time.Millisecond},
		}}},
	// All that follows a loss waits.
	{"a registration is lost during a pause", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 4 * time.Second, Policy: "reconnect", Locks: true, Latency: 200 * time.Microsecond, Failover: "move"},
		Events: []event{
			{At: 5 * time.Second, Do: pause, Node: 0, For: 30 * time.Second},
			{At: 8 * time.Second, Do: revokeLease, Node: 0},
			{At: 10 * time.Second, Do: createTopic, Node: 0, Arg: 5},
		}}},
	{"topics come and go during a pause", schedule{Seed: 1, Settings: settings{Nodes: 3, Topics: 8,
		TTL: 8 * time.Second, Policy: "drain", Locks: true, Latency: time.Millisecond, Failover: "move"},
		Events: []event{
			{At: 5 * time.Second, Do: pause, Node: 0, For: 60 * time.Second},
			{At: 20 * time.Second, Do: crashNode, Node: 1, For: 20 * time.Second},
			{At: 21 * time.Second, Do: createTopic, Arg: 8},
			{At: 22 * time.Second, Do: createTopic, Arg: 9},
			{At: 23 * time.Second, Do: createTopic, Arg: 10},
			{At: 30 * time.Second, Do: crashBroker, Node: 0, For: time.Second},
			{At: 40 * time.Second, Do: deleteTopic, Arg: 1},
		}}},
	// What the process that comes up serves, it may not: the decision about it waits.
	{"brokers restart while a pause holds their registrations back", schedule{Seed: 705, Settings: settings{Nodes: 4, Topics: 8,
		TTL: 32 * time.Second, Policy: "drain", Forgets: true, Placer: true, Latency: time.Millisecond},
		Events: []event{
			{At: 25305 * time.Millisecond, Do: pause, Node: 0, For: 87300 * time.Millisecond},
			{At: 49391 * time.Millisecond, Do: restartFleet, Node: 0, For: 38339 * time.Millisecond},
		}}},
	// Nobody is to be stopped for what is everybody's.
	{"etcd has no leader for longer than the lease", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 4 * time.Second, Policy: "reconnect", Retries: 1, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: storeErrors, Node: 0, For: 20 * time.Second},
		}}},
	{"a broker is declared dead, and its policy is shutdown", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 4 * time.Second, Policy: "shutdown", Stop: ladderStops, Locks: true, Latency: 200 * time.Microsecond, Failover: "hold"},
		Events: []event{
			{At: 10 * time.Second, Do: cut, Node: 0, For: 10 * time.Second},
			{At: 40 * time.Second, Do: join, Node: 0},
			{At: 60 * time.Second, Do: revokeLease, Node: 1},
		}}},
	// The lease is renewed after the key was deleted, which the renewal does not say.
	{"a key is deleted between the look and the renewal", schedule{Seed: 1795304724, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 8 * time.Second, Margin: time.Second, Grace: 2 * time.Second, Policy: "shutdown", Stop: ladderStops, Locks: true,
		Latency: 200 * time.Microsecond, Failover: "move"},
		Events: []event{
			{At: 22568 * time.Millisecond, Do: flakyStore, Node: 0, For: 4196 * time.Millisecond},
			{At: 37386 * time.Millisecond, Do: restartFleet, Node: 0, For: 5208 * time.Millisecond, Arg: 1},
			{At: 40782 * time.Millisecond, Do: cutReplies, Node: 1, For: 3902 * time.Millisecond},
			{At: 43035 * time.Millisecond, Do: deleteKey, Node: 1},
		}}},
	{"a broker comes back with what another was given, and a pause begins", schedule{Seed: 1795316641, Settings: settings{Nodes: 2, Topics: 7, TTL: 16000000000, Margin: 300000000, Recover: 0, Grace: 0, Policy: "shutdown", Retries: 0, Stop: true, Forgets: false, Placer: true, Locks: false, Latency: 200000, Failover: "", Late: 0}, Events: []event{
		{At: 9307 * time.Millisecond, Do: crashSidecar, Node: 0, For: 16373 * time.Millisecond, Arg: 1},
		{At: 9307 * time.Millisecond, Do: crashSidecar, Node: 1, For: 16373 * time.Millisecond, Arg: 1},
		{At: 26896 * time.Millisecond, Do: pause, Node: 0, For: 25716 * time.Millisecond, Arg: 0},
	}}},
	{"a broker that serves what it restored is registered, and then cut off", schedule{Seed: 1795314565, Settings: settings{Nodes: 3, Topics: 8, TTL: 32000000000, Margin: 300000000, Recover: 2000000000, Grace: 0, Policy: "drain", Retries: 0, Stop: true, Forgets: false, Placer: true, Locks: true, Latency: 1000000, Failover: "", Late: 0}, Events: []event{
		{At: 29544 * time.Millisecond, Do: restartFleet, Node: 0, For: 29698 * time.Millisecond, Arg: 0},
		{At: 47979 * time.Millisecond, Do: slowReplies, Node: 0, For: 31919 * time.Millisecond, Arg: 900},
		{At: 47979 * time.Millisecond, Do: slowReplies, Node: 0, For: 31919 * time.Millisecond, Arg: 900},
		{At: 74836 * time.Millisecond, Do: cut, Node: 0, For: 48000 * time.Millisecond, Arg: 0},
	}}},
	{"a key is deleted while etcd renews leases and answers nothing else", schedule{Seed: 1795313590, Settings: settings{Nodes: 4, Topics: 5, TTL: 16000000000, Margin: 8000000000, Recover: 2000000000, Grace: 0, Policy: "drain", Retries: 0, Stop: false, Forgets: false, Placer: false, Locks: false, Latency: 10000000, Failover: "", Late: 0}, Events: []event{
		{At: 42578 * time.Millisecond, Do: busyStore, Node: 3, For: 40583 * time.Millisecond, Arg: 0},
		{At: 48530 * time.Millisecond, Do: newLeader, Node: 2, For: 0 * time.Millisecond, Arg: 0},
		{At: 51182 * time.Millisecond, Do: deleteKey, Node: 1, For: 0 * time.Millisecond, Arg: 0},
	}}},
	// What machines do, and hands other than ours.
	{"a deposed leader goes on confirming, and is all that a sidecar knows", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 8 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: lyingLeader, For: 30 * time.Second, Arg: 0},
		}}},
	{"a deposed leader is one of three that a sidecar knows", schedule{Seed: 1, Settings: settings{Nodes: 3, Topics: 3,
		TTL: 8 * time.Second, Policy: "drain", Placer: true, Several: true, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: lyingLeader, For: 30 * time.Second, Arg: 0},
			{At: 60 * time.Second, Do: noQuorum, For: 30 * time.Second, Arg: 1},
			{At: 70 * time.Second, Do: lyingLeader, For: 30 * time.Second, Arg: 2},
		}}},
	{"a sidecar is killed and back behind a cut", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 2,
		TTL: 32 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: cut, Node: 0, For: 90 * time.Second},
			{At: 27 * time.Second, Do: crashSidecar, Node: 0, For: 500 * time.Millisecond},
		}}},
	{"hands bring back what was quiesced in an outage", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 6,
		TTL: 8 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: cut, Node: 0, For: 60 * time.Second},
			{At: 35 * time.Second, Do: hands, Node: 0, For: 3 * time.Second},
			{At: 50 * time.Second, Do: hands, Node: 0, For: 3 * time.Second},
		}}},
	{"a sidecar freezes, and hands bring back what it had quiesced", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 6,
		TTL: 8 * time.Second, Policy: "drain", Placer: true, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: cut, Node: 0, For: 60 * time.Second},
			{At: 30 * time.Second, Do: freezeSidecar, Node: 0, For: 40 * time.Second},
			{At: 31 * time.Second, Do: hands, Node: 0, For: 2 * time.Second},
		}}},
	{"a broker is restarted at once beside a frozen sidecar", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 8 * time.Second, Policy: "drain", Forgets: true, Placer: true, Stop: ladderStops, Restarts: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: freezeSidecar, Node: 0, For: 40 * time.Second},
		}}},
	{"a broker ends by itself beside a frozen sidecar, and is started past the deadline", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 8 * time.Second, Policy: "drain", Forgets: true, Placer: true, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: freezeSidecar, Node: 0, For: 60 * time.Second},
			{At: 12 * time.Second, Do: crashBroker, Node: 0, For: 15 * time.Second},
		}}},
	{"a broker is slow to stop, and then cannot be stopped", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 16 * time.Second, Policy: "drain", Placer: true, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 5 * time.Second, Do: slowStop, Node: 0, For: 60 * time.Second, Arg: 4000},
			{At: 5 * time.Second, Do: refuseQuiesce, Node: 0, For: 120 * time.Second},
			{At: 10 * time.Second, Do: cut, Node: 0, For: 30 * time.Second},
			{At: 60 * time.Second, Do: refuseStop, Node: 0, For: 40 * time.Second},
			{At: 61 * time.Second, Do: cut, Node: 0, For: 50 * time.Second},
		}}},
	{"a machine stands for longer than the lease, and etcd is out of reach after it", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 32 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: pauseVM, Node: 0, For: 40 * time.Second, Arg: 700},
			{At: 20 * time.Second, Do: cut, Node: 0, For: 90 * time.Second},
		}}},
	{"a machine stands, its wall clock is set back meanwhile, and etcd is out of reach", schedule{Seed: 42258, Settings: settings{Nodes: 3, Topics: 6,
		TTL: 4 * time.Second, Recover: 300 * time.Millisecond, Policy: "drain", Stop: ladderStops, Latency: 200 * time.Microsecond, Several: true, Boot: 2 * time.Second},
		Events: []event{
			{At: 6517 * time.Millisecond, Do: pauseVM, Node: 2, For: 1903 * time.Millisecond, Arg: 830},
			{At: 7619 * time.Millisecond, Do: stepWall, Node: 2, Arg: -3600},
			{At: 9180 * time.Millisecond, Do: freezeStore, For: 6424 * time.Millisecond, Arg: 1},
		}}},
	// Only the note of the one before tells the new sidecar that the machine stood.
	{"a machine stands while its sidecar is restarted, and etcd is out of reach", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 32 * time.Second, Policy: "drain", Placer: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 20 * time.Second, Do: cut, Node: 0, For: 90 * time.Second},
			{At: 20500 * time.Millisecond, Do: crashSidecar, Node: 0, For: 21 * time.Second},
			{At: 21 * time.Second, Do: pauseVM, Node: 0, For: 20 * time.Second},
		}}},
	// Between two beats of the loop, with a margin that is shorter than that.
	{"the fence point of a machine that stood comes while etcd is out of reach", schedule{Seed: 6000053, Settings: settings{Nodes: 2, Topics: 8,
		TTL: 32 * time.Second, Margin: 300 * time.Millisecond, Policy: "shutdown", Stop: ladderStops, Locks: true, Latency: 10 * time.Millisecond, Failover: "hold", Several: true, Restarts: true},
		Events: []event{
			{At: 2730 * time.Millisecond, Do: cut, Node: 1, For: 50237 * time.Millisecond},
			{At: 5672 * time.Millisecond, Do: pauseVM, Node: 1, For: 19289 * time.Millisecond, Arg: 422},
		}}},
	{"hands bring a topic back just before its broker is registered, and renewals go on failing", schedule{Seed: 6911, Settings: settings{Nodes: 4, Topics: 4,
		TTL: 5 * time.Second, Recover: 2 * time.Second, Policy: "shutdown", Stop: true, Locks: true, Latency: 200 * time.Microsecond, Several: true, Boot: 5 * time.Second}, Events: []event{
		{At: 2034 * time.Millisecond, Do: activate, Node: 3},
		{At: 2288 * time.Millisecond, Do: freezeStore, Node: 2, For: 12560 * time.Millisecond},
		{At: 12867 * time.Millisecond, Do: flakyStore, Node: 0, For: 11996 * time.Millisecond},
		{At: 14769 * time.Millisecond, Do: hands, Node: 2, For: 5488 * time.Millisecond},
		{At: 29877 * time.Millisecond, Do: busyStore, Node: 2, For: 5994 * time.Millisecond},
	}}},
	// What the ladder stopped is started again, and boots when the sidecar is stopped.
	{"a sidecar is stopped while its broker boots beside a silent etcd", schedule{Seed: 20675, Settings: settings{Nodes: 2, Topics: 3,
		TTL: 32 * time.Second, Policy: "drain", Grace: 8 * time.Second, Stop: true, Placer: true, Restarts: true, Boot: 5 * time.Second, Latency: time.Millisecond},
		Events: []event{
			{At: 9651 * time.Millisecond, Do: refuseQuiesce, Node: 1, For: 77228 * time.Millisecond},
			{At: 21457 * time.Millisecond, Do: powerCut, Node: 0, For: 5909 * time.Millisecond, Arg: 1},
			{At: 29199 * time.Millisecond, Do: noQuorum, Node: 1, For: 80608 * time.Millisecond, Arg: 1},
			{At: 43138 * time.Millisecond, Do: stopSidecar, Node: 1, For: 30602 * time.Millisecond},
		}}},
	{"brokers boot for nearly a whole lease, one after the other, after planned stops", schedule{Seed: 1795751979, Settings: settings{Nodes: 3, Topics: 4,
		TTL: 32 * time.Second, Margin: 16 * time.Second, Recover: 300 * time.Millisecond, Policy: "drain", Stop: true, Placer: true, Latency: time.Millisecond,
		Boot: 31291 * time.Millisecond}, Events: []event{
		{At: 138494 * time.Millisecond, Do: roll, Node: 1, For: 64 * time.Second, Arg: 103},
	}}},
	{"a process that comes up refuses to be fenced, until it is stopped for that", schedule{Seed: 3138, Settings: settings{Nodes: 3, Topics: 2,
		TTL: 32 * time.Second, Margin: 16 * time.Second, Recover: 2 * time.Second, Policy: "drain", Stop: true, Forgets: true, Placer: true, Restarts: true,
		Latency: 200 * time.Microsecond}, Events: []event{
		{At: 14655 * time.Millisecond, Do: refuseQuiesce, Node: 0, For: 34935 * time.Millisecond},
		{At: 15419 * time.Millisecond, Do: crashNode, Node: 0, For: 33713 * time.Millisecond, Arg: 1},
	}}},
	{"hosts sleep, and their clocks are set", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 16 * time.Second, Policy: "drain", Placer: true, Stop: ladderStops, Several: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: suspend, Node: 0, For: 20 * time.Second},
			{At: 20 * time.Second, Do: stepWall, Node: 1, Arg: 3600},
			{At: 50 * time.Second, Do: stepWall, Node: 1, Arg: -3600},
			{At: 60 * time.Second, Do: suspend, Node: 1, For: 10 * time.Second},
		}}},
	{"a guard shares the fate of its sidecar", schedule{Seed: 1, Settings: settings{Nodes: 2, Topics: 4,
		TTL: 8 * time.Second, Policy: "drain", Placer: true, Stop: ladderStops, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: killBoth, Node: 0, For: 15 * time.Second},
			{At: 40 * time.Second, Do: freezeBoth, Node: 1, For: 15 * time.Second},
			{At: 80 * time.Second, Do: killGuard, Node: 0},
			{At: 82 * time.Second, Do: freezeSidecar, Node: 0, For: 15 * time.Second},
		}}},
	{"etcd grants more than was asked for, and a backup of it is restored", schedule{Seed: 1, Settings: settings{Nodes: 3, Topics: 4,
		TTL: 8 * time.Second, MinTTL: 11 * time.Second, Policy: "drain", Locks: true, Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 10 * time.Second, Do: restore, For: 25 * time.Second},
			{At: 20 * time.Second, Do: drain, Node: 0},
			{At: 22 * time.Second, Do: crashNode, Node: 1, For: 30 * time.Second},
		}}},
	// The first is back when its own registration has ended, and what stands of the others
	// only lingers: it was cut off before.
	{"the power of all hosts fails, and each is back at another second", schedule{Seed: 1, Settings: settings{Nodes: 3, Topics: 4,
		TTL: 32 * time.Second, Policy: "drain", Latency: 200 * time.Microsecond},
		Events: []event{
			{At: 5 * time.Second, Do: cut, Node: 0, For: 8 * time.Second},
			{At: 11 * time.Second, Do: powerCut, For: 27 * time.Second},
		}}},
}

func TestNamedSchedules(t *testing.T) {
	dir := scratch(t)
	for i, row := range named {
		t.Run(row.name, func(t *testing.T) {
			if raced.Enabled && i%4 != 0 {
				t.Skip("the race detector plays every fourth")
			}
			o := run(t, row.schedule, filepath.Join(dir, fmt.Sprint(i)), !*brief)
			switch {
			case len(o.Violations) == 0:
			case *brief:
				t.Errorf("%s\n%s", row.schedule, strings.Join(o.Violations, "\n"))
			default:
				report(t, row.schedule, o, filepath.Join(dir, fmt.Sprint(i)))
			}
		})
	}
}
