package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"holdfast/agent/control"
	"holdfast/agent/moving"
	"holdfast/brokerapi"
	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/probes"
	"holdfast/recovery"
	"holdfast/recovery/moves"
	"holdfast/recovery/topics"
)

// mover is a broker that says where its topics stand.
type mover struct {
	brokerapi.Broker
	brokerapi.Mover
	topics map[string]moves.Extent
	err    error
}

func (m *mover) Extent(_ context.Context, topic string) (moves.Extent, error) {
	e, here := m.topics[topic]
	if m.err == nil && !here {
		return e, brokerapi.Errorf(brokerapi.ErrRefused, "%s: a stream in memory cannot be moved", topic)
	}
	return e, m.err
}

// Resume is for what was called off. It never comes to its end.
func (m *mover) Resume(ctx context.Context, _, _ string, _ []byte, _ *moves.Extent) (moves.Extent, error) {
	<-ctx.Done()
	return moves.Extent{}, ctx.Err()
}

// unloading is the part of a sidecar that is asked to move topics, over an etcd in memory.
type unloading struct {
	*agent
	t     *testing.T
	store *etcd.Server
	mover *mover
}

func (u *unloading) put(key, value string, lease int64) {
	u.t.Helper()
	if _, err := u.store.Put(u.t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}); err != nil {
		u.t.Fatal(err)
	}
}

// peer is another broker in etcd.
func (u *unloading) peer(id, mode, driver string, topics int) {
	u.put("/cluster/brokers/"+id+"/state", fmt.Sprintf(`{"mode":%q}`, mode), 0)
	for i := range topics {
		u.put(fmt.Sprintf("/cluster/brokers/%s/n/%s-%d", id, id, i), "null", 0)
	}
	if driver != "" {
		lease, err := u.store.LeaseGrant(u.t.Context(), &pb.LeaseGrantRequest{TTL: 3600})
		if err != nil {
			u.t.Fatal(err)
		}
		u.put("/cluster/register/"+id, fmt.Sprintf(`{"holdfast":{"driver":%q}}`, driver), lease.ID)
	}
}

// inUnloading runs claim beside broker a, which has /n/t and may move it to b.
func inUnloading(t *testing.T, claim func(u *unloading)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		u := &unloading{t: t, store: etcd.New(etcd.Config{}), mover: &mover{topics: map[string]moves.Extent{
			"/n/t":    {First: 1, Last: 7, Count: 7, Bytes: 70, Rests: "on the disk"},
			"/n/busy": {First: 1, Last: 7, Count: 7, Bytes: 70, Active: 2},
		}}}
		quiet, reg := slog.New(slog.DiscardHandler), prometheus.NewPedanticRegistry()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		u.agent = &agent{cfg: natsDefaults().Effective(), log: quiet, broker: u.mover, main: cluster.Over(cluster.Config{}, u.store.Conn(nil), quiet),
			inbox: make(chan func(), 100), life0: ctx}
		u.brokerID = "a"
		u.ids.registered.set("a")
		u.memory.Incarnation = "i"
		u.reconciler = u.newReconciler(topics.ReconcilerSettings{Concurrency: 1, LoadTimeout: time.Second, AuditInterval: time.Minute}, u.main, reg)
		u.health = probes.NewHealth(probes.HealthSettings{Interval: time.Second, Timeout: time.Second, Rise: 1, Fall: 1},
			func(context.Context) error { return nil }, nil, quiet, reg)
		u.moves = u.newMoves(reg)

		id, _, err := u.main.Grant(ctx, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		seen, err := u.main.Snapshot(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		done, err := u.main.Register(ctx, cluster.RegisterRequest{LeaseID: id, Value: []byte(`{"holdfast":{"driver":"nats"}}`), Seen: seen,
			Member: cluster.Member{Incarnation: "i", At: time.Now()}})
		if err != nil {
			t.Fatal(err)
		}
		u.grant.LeaseID, u.grant.Epoch = id, done.Revision
		u.view.Store(&snapshot{brokerID: "a", registeredAs: "a", Circumstances: recovery.Circumstances{Attachment: recovery.Attached}})
		for _, run := range []func(context.Context) error{u.health.Run, u.moves.Run} {
			running.Go(func() { _ = run(ctx) })
		}
		u.moves.SetOrders(u.moveOrders(recovery.Orders{Attached: true, Mode: recovery.Active, Epoch: done.Revision}))
		for _, topic := range []string{"/n/t", "/n/busy", "/n/memory"} {
			u.put("/cluster/brokers/a"+topic, "null", 0)
		}
		u.peer("b", "active", "nats", 1)
		u.peer("full", "active", "nats", 5)
		u.peer("drained", "drained", "nats", 0)
		u.peer("gone", "active", "", 0)
		u.peer("other", "active", "http", 0)
		u.put("/cluster/brokers/b/n/theirs", "null", 0)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		claim(u)
	})
}

func exitCode(err error) int {
	var exit *control.ExitError
	switch {
	case err == nil:
		return control.ExitDone
	case errors.As(err, &exit):
		return exit.Code
	}
	return control.ExitFailed
}

func TestAPlanThatCannotBeIsRefusedBeforeAnythingIsTouched(t *testing.T) {
	whole := moves.Move{ID: "m1", From: "a", To: "b", Planned: &moves.Extent{}}
	journal := func(m moves.Move, p moves.Phase) string { m.Phase = p; return string(m.Value()) }
	for _, row := range []struct {
		name    string
		order   unloadOrder
		journal string // of /n/t, before
		change  func(u *unloading)
		code    int
		want    string
	}{
		{name: "no topic's name", order: unloadOrder{Topic: "t"}, code: control.ExitUsage, want: "want the form /namespace/topic"},
		{name: "a topic of nobody", order: unloadOrder{Topic: "/n/x"}, code: control.ExitRefused, want: "no broker has it assigned: 'holdfast topics'"},
		{name: "another's topic", order: unloadOrder{Topic: "/n/theirs"}, code: control.ExitRefused, want: "it is assigned to b, not to a: run this there"},
		{name: "a topic that cannot be moved", order: unloadOrder{Topic: "/n/memory"}, code: control.ExitRefused, want: "a stream in memory cannot be moved"},
		{name: "consumers at work", order: unloadOrder{Topic: "/n/busy"}, code: control.ExitRefused, want: "consumers are at work (2): stop them, or say --force"},
		{name: "to nobody", order: unloadOrder{Topic: "/n/t", To: "zz"}, code: control.ExitRefused, want: "--to zz: no such broker: 'holdfast fleet' lists them"},
		{name: "to itself", order: unloadOrder{Topic: "/n/t", To: "a"}, code: control.ExitRefused, want: "--to a: the topic is there already"},
		{name: "to one that is gone", order: unloadOrder{Topic: "/n/t", To: "gone"}, code: control.ExitRefused, want: "--to gone: that broker is not registered"},
		{name: "to one that is drained", order: unloadOrder{Topic: "/n/t", To: "drained"}, code: control.ExitRefused, want: "that broker is drained: 'holdfast activate' there first"},
		{name: "to one of another driver", order: unloadOrder{Topic: "/n/t", To: "other"}, code: control.ExitRefused, want: "that broker's driver is http, this one's is nats"},
		{name: "a garbled journal", order: unloadOrder{Topic: "/n/t"}, journal: "{", code: control.ExitRefused, want: "look at /cluster/moves/n/t in etcd, and delete it"},
		{name: "a newer journal", order: unloadOrder{Topic: "/n/t"}, journal: strings.Replace(journal(whole, moves.Pending), `"format":1`, `"format":9`, 1),
			code: control.ExitRefused, want: "of a newer version"},
		{name: "under way to elsewhere", order: unloadOrder{Topic: "/n/t", To: "full"}, journal: journal(whole, moves.Pending),
			code: control.ExitRefused, want: "it is being moved from a to b (pending): wait for it, or 'holdfast moves cancel m1'"},
		{name: "called off, and not back yet", order: unloadOrder{Topic: "/n/t"}, journal: journal(whole, moves.Undoing),
			code: control.ExitRefused, want: "(undoing): wait for it"},
		{name: "a broker that does not say", order: unloadOrder{Topic: "/n/t"}, change: func(u *unloading) { u.mover.err = errors.New("no answer from the disk") },
			code: control.ExitFailed, want: "no answer from the disk"},
		{name: "detached", order: unloadOrder{Topic: "/n/t"}, change: func(u *unloading) { u.moves.SetOrders(u.moveOrders(recovery.Orders{})) },
			code: control.ExitFailed, want: "broker a is not attached: 'holdfast status' says why"},
		{name: "etcd that takes nothing", order: unloadOrder{Topic: "/n/t"}, change: func(u *unloading) { u.store.SetFault(func(string) error { return etcd.ErrNoLeader }) },
			code: control.ExitFailed, want: "check the quorum of etcd"},
		{name: "placed by the sidecars", order: unloadOrder{Topic: "/n/t"}, change: func(u *unloading) { u.placer = &topics.Placer{} },
			code: control.ExitRefused, want: "with --assignment rendezvous the sidecars place the topics"},
	} {
		t.Run(row.name, func(t *testing.T) {
			inUnloading(t, func(u *unloading) {
				if row.journal != "" {
					u.put("/cluster/moves/n/t", row.journal, 0)
				}
				if row.change != nil {
					row.change(u)
				}
				before := u.store.Content()
				_, err := u.unload(u.t.Context(), row.order)
				if after := u.store.Content(); after.Revision != before.Revision {
					u.t.Errorf("something was written: revision %d, was %d", after.Revision, before.Revision)
				}
				u.store.SetFault(nil)
				if code := exitCode(err); code != row.code || err == nil || !strings.Contains(err.Error(), row.want) {
					u.t.Errorf("exit code %d, error %v; want %d, %q", code, err, row.code, row.want)
				}
			})
		})
	}
}

func TestUnloadTellsItsPlanAndASecondOneJoins(t *testing.T) {
	inUnloading(t, func(u *unloading) {
		plan, err := u.unload(u.t.Context(), unloadOrder{Topic: "/n/t", DryRun: true})
		if err != nil || plan.ID != "" || plan.To != "b" || plan.Planned == nil || plan.Planned.Count != 7 || plan.Planned.Bytes != 70 || plan.Planned.Rests != "on the disk" {
			u.t.Errorf("dry run: %+v, error %v", plan, err)
		}
		if kv, err := u.main.Journal(u.t.Context(), u.main.Keys().Move("/n/t")); kv != nil || err != nil {
			u.t.Errorf("a dry run wrote %v, error %v", kv, err)
		}
		first, err := u.unload(u.t.Context(), unloadOrder{Topic: "/n/t", Reason: "new disk"})
		if err != nil || first.ID == "" || first.To != "b" || first.UnderWay {
			u.t.Fatalf("first: %+v, error %v", first, err)
		}
		for _, to := range []string{"", "b"} {
			if again, err := u.unload(u.t.Context(), unloadOrder{Topic: "/n/t", To: to}); err != nil || again.ID != first.ID || !again.UnderWay {
				u.t.Errorf("again: %+v, error %v", again, err)
			}
		}
		if forced, err := u.unload(u.t.Context(), unloadOrder{Topic: "/n/busy", To: "full", Force: true}); err != nil || forced.To != "full" {
			u.t.Errorf("forced: %+v, error %v", forced, err)
		}
	})
}

// ask is one request to the control endpoint.
func (u *unloading) ask(method, path, body string, answer any) int {
	u.t.Helper()
	w := httptest.NewRecorder()
	u.controlHandler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
		u.t.Fatalf("%s: %v", w.Body, err)
	}
	return w.Code
}

func TestTheControlEndpointSaysWhyAMoveCannotBeBegunOrCalledOff(t *testing.T) {
	inUnloading(t, func(u *unloading) {
		switched := moves.Move{ID: "m9", From: "a", To: "b", Phase: moves.Switched, Planned: &moves.Extent{}, Sealed: &moves.Extent{}}
		u.put("/cluster/brokers/b/n/gone", "null", 0) // or the move ends as taken by others
		u.put("/cluster/moves/n/gone", string(switched.Value()), 0)
		var begun moving.Shown
		if code := u.ask("POST", "/v1/unload", `{"topic":"/n/t"}`, &begun); code != 200 || begun.ID == "" {
			u.t.Fatalf("status %d, plan %+v", code, begun)
		}
		type refusal struct {
			Error    string
			ExitCode int `json:"exit_code"`
		}
		for _, row := range []struct {
			method, path, body string
			status, code       int
			want               string
		}{
			{"POST", "/v1/unload", `{`, 400, control.ExitUsage, "request body"},
			{"POST", "/v1/unload", `{"topic":"t"}`, 400, control.ExitUsage, "want the form /namespace/topic"},
			{"POST", "/v1/unload", `{"topic":"/n/t","to":"a"}`, 409, control.ExitRefused, "is being moved from a to b"},
			{"GET", "/v1/moves?id=zz", "", 400, control.ExitUsage, `move "zz": unknown: 'holdfast moves' lists them`},
			{"POST", "/v1/moves/zz/cancel", "", 409, control.ExitRefused, `move "zz": unknown`},
			{"POST", "/v1/moves/m9/cancel", "", 409, control.ExitRefused, "move it back with 'holdfast unload /n/gone --to a' there"},
		} {
			var r refusal
			status := u.ask(row.method, row.path, row.body, &r)
			if status != row.status || r.ExitCode != row.code || !strings.Contains(r.Error, row.want) {
				u.t.Errorf("%s %s: status %d, %+v; want %d, %d, %q", row.method, row.path, status, r, row.status, row.code, row.want)
			}
		}
		var off moves.Move
		if code := u.ask("POST", "/v1/moves/"+begun.ID+"/cancel", "", &off); code != 200 || off.Phase != moves.Cancelled {
			u.t.Errorf("status %d, %+v", code, off)
		}
		var list []moves.Move
		if code := u.ask("GET", "/v1/moves", "", &list); code != 200 || len(list) != 2 {
			u.t.Errorf("status %d, %d moves", code, len(list))
		}
	})
}
