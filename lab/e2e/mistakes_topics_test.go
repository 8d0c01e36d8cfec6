package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// sharedSidecar is that of a NATS server m1, ready, for rows that change nothing of it. Among its
// assignments is what operators get wrong; beside it are brokers that can take none of its topics.
var sharedSidecar = sync.OnceValues(func() (*harness.Sidecar, error) {
	if _, err := sharedEtcd(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	etcd, flags, err := shareEtcd(sharedLab)
	if err != nil {
		return nil, err
	}
	for _, kv := range [][2]string{
		{"/cluster/brokers/m1/shop/orders", "null"},
		{"/cluster/brokers/m1/shop/carts", "null"},
		{"/topics/shop/carts", `{subjects: ["carts.>"]}`},
		{"/cluster/brokers/m1/shop/bills", "null"},
		{"/topics/shop/bills", `{"subjects": ["bills.>"], "max_age": 86400}`},
		{"/cluster/brokers/m1/shop/fast", "null"},
		{"/topics/shop/fast", `{"storage": "ssd"}`},
		{"/cluster/brokers/m1/shop/days", "null"},
		{"/topics/shop/days", `{"max_age_seconds": "1d"}`},
		{"/cluster/brokers/m1/shop/three", "null"},
		{"/topics/shop/three", `{"replicas": 3}`},
		{"/cluster/brokers/m1/payments", "null"},
		{"/cluster/brokers/m2/shop/theirs", "null"},
		{"/cluster/brokers/away/state", `{"mode":"active"}`},
		{"/cluster/register/idle", `{"holdfast":{"driver":"nats"}}`},
		{"/cluster/brokers/idle/state", `{"mode":"drained","by":"operator","reason":"disk swap"}`},
		{"/cluster/register/dove", `{"holdfast":{"driver":"pulsar"}}`},
		{"/cluster/brokers/dove/state", `{"mode":"active"}`},
	} {
		if _, err := etcd.Client().Put(ctx, kv[0], kv[1], clientv3.WithLease(clientv3.NoLease)); err != nil {
			return nil, err
		}
	}
	n, err := sharedLab.StartNATS(ctx, harness.NATSOptions{Name: "m1"})
	if err != nil {
		return nil, err
	}
	s, err := sharedLab.StartSidecar(harness.SidecarOptions{Broker: n, Endpoints: []string{etcd.Endpoint()}, Flags: slices.Concat(quickFlags(), flags)})
	if err != nil {
		return nil, err
	}
	return s, s.AwaitReady(ctx, bound)
})

// besideM1 sets {m1}, the flags of a verb for the shared sidecar.
func besideM1(w *world) {
	s, err := sharedSidecar()
	w.ok(err)
	w.set("m1", "--control-socket "+s.ControlSocket)
}

// topicMistakes are those with assignments, records of topics, and the web endpoints.
var topicMistakes = []mistake{
	{
		name: "a topic that nobody has", given: besideM1,
		command: "unload {m1} /shop/odrers", exit: 3,
		message: "topic /shop/odrers: no broker has it assigned: 'holdfast topics' lists those of this one",
	},
	{
		name: "a topic without its namespace", given: besideM1,
		command: "unload {m1} orders", exit: 2,
		message: `topic "orders": want the form /namespace/topic`,
	},
	{
		name: "a topic of another broker", given: besideM1,
		command: "unload {m1} /shop/theirs", exit: 3,
		message: "topic /shop/theirs: it is assigned to m2, not to m1: run this there",
	},
	{
		name: "to where it is", given: besideM1,
		command: "unload {m1} /shop/orders --to m1", exit: 3,
		message: "--to m1: the topic is there already",
	},
	{
		name: "to a broker that there is not", given: besideM1,
		command: "unload {m1} /shop/orders --to n5", exit: 3,
		message: "--to n5: no such broker: 'holdfast fleet' lists them",
	},
	{
		name: "to a broker that is not registered", given: besideM1,
		command: "unload {m1} /shop/orders --to away", exit: 3,
		message: "--to away: that broker is not registered: is it running?",
	},
	{
		name: "to a broker that is drained", given: besideM1,
		command: "unload {m1} /shop/orders --to idle", exit: 3,
		message: "--to idle: that broker is drained: 'holdfast activate' there first",
	},
	{
		name: "to a broker of another driver", given: besideM1,
		command: "unload {m1} /shop/orders --to dove", exit: 3,
		message: "--to dove: that broker's driver is pulsar, this one's is nats",
	},
	{
		name: "a deadline that has passed", given: besideM1,
		command: "drain {m1} --move --deadline -1s --reason swap", exit: 2,
		message: "--deadline -1s: must be at least 1s",
	},
	{
		name: "a target without a move", given: besideM1,
		command: "drain {m1} --to m2", exit: 2,
		message: "drain: --to goes with --move: add it, or leave --to out",
	},
	{
		name: "a move that there is not", given: besideM1,
		command: "moves {m1} cancel 7", exit: 3,
		message: `move "7": unknown: 'holdfast moves' lists them`,
	},
	{
		name: "a pause without a reason", given: besideM1,
		command: "pause {m1} --for 1h --owner ops", exit: 2,
		message: "--reason: required: give why, for those who find the broker paused",
	},
	{
		name: "a confirmation of nothing", given: besideM1,
		command: "confirm {m1}", exit: 1,
		message: "nothing to confirm: the mass-change guard has not tripped",
	},
	{
		name: "a record that is no JSON", given: besideM1,
		command: "topics {m1} --state missing",
		message: `/topics/shop/carts: cannot be read: invalid character 's' looking for beginning of object key string: write null, or JSON like {"subjects":["orders.>"]}`,
	},
	{
		name: "a record that is no JSON keeps nothing else from clients", given: besideM1,
		command: "events {m1}",
		message: "topics reconciled (complete) 2 of 6 assigned topics served",
	},
	{
		name: "an assignment without a namespace", given: besideM1,
		command: "topics {m1} --state ignored",
		message: "brokers/m1/payments  ignored  this key is no assignment: write ",
	},
	{
		name: "assignments that are not served, in the status", given: besideM1,
		command: "status {m1}",
		message: "2 of 6 served, 4 missing, 1 ignored, 1 with a misspelt field",
	},
	{
		name: "a field of a record that is nearly one", given: besideM1,
		command: "topics {m1} --state served",
		message: `/topics/shop/bills: "max_age" does nothing: did you mean max_age_seconds?`,
	},
	{
		name: "a storage that there is not", given: besideM1,
		command: "topics {m1} --state missing",
		message: `/topics/shop/fast: "storage" is "ssd": want "file" (the default) or "memory"`,
	},
	{
		name: "a word for seconds", given: besideM1,
		command: "topics {m1} --state missing",
		message: `/topics/shop/days: "max_age_seconds" is "1d": want a whole number of seconds, such as 86400 for a day`,
	},
	{
		name: "replicas on a server that is alone", given: besideM1,
		command: "topics {m1} --state missing",
		message: `/topics/shop/three, is {"replicas": 3}`,
	},
	{
		name: "an activation of a broker that is not there",
		given: func(w *world) {
			s, err := w.lab.StartSidecar(harness.SidecarOptions{Name: "waits", Endpoints: []string{w.etcd.Endpoint()},
				Flags: append(w.flags, "--driver", "nats", "--broker-admin", "nats://127.0.0.1:1", "--health-interval", "100ms")})
			w.ok(err)
			w.ok(harness.Await(w.ctx, bound, "the sidecar to have asked the broker", func(ctx context.Context) (bool, string) {
				st, err := s.Status(ctx)
				return err == nil && st.Broker.LastError != "", fmt.Sprint(err)
			}))
			w.set("socket", s.ControlSocket)
		},
		command: "activate --control-socket {socket}", exit: 1,
		message: "the broker was not found yet (--broker-admin nats://127.0.0.1:1: not connected: dial tcp 127.0.0.1:1: connect: connection refused: is nats-server running there?): start it, then repeat",
	},
}
