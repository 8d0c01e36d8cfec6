package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/cluster"
)

// reachable is an etcd that answers every read with nothing, or not at all.
type reachable struct {
	grpc.ClientConnInterface
	away bool
}

func (r *reachable) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if r.away {
		return status.Error(codes.Unavailable, "connection refused")
	}
	if answer, ok := reply.(*pb.TxnResponse); ok {
		answer.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{}}}}
	}
	return nil
}

// gateSays is the control socket's answer.
func gateSays(a *agent) (code int, body string) {
	w := httptest.NewRecorder()
	a.controlHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/gate", nil))
	return w.Code, strings.Join(strings.Fields(w.Body.String()), " ")
}

const gateOpen = `{ "may_start": true }`

func TestTheGateOpensForABrokerWhoseLeaseIsHeldOrWhoseEtcdAnswers(t *testing.T) {
	etcd := &reachable{away: true}
	inLifeAfter(t, nil, func(l *sidecarLife) {
		l.main = cluster.Over(l.cfg.Cluster(), etcd, nil)
		l.openChild()
	}, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.until(l.fencePoint() - 1)
		if _, got := gateSays(l.agent); got != gateOpen {
			t.Errorf("while the lease is held: %s", got)
		}
		l.until(l.fencePoint())
		const fenced = `{ "may_start": false, "reason": "fenced", "detail": "its lease may be gone, and etcd does not answer: `
		if code, got := gateSays(l.agent); code != http.StatusOK || !strings.HasPrefix(got, fenced) {
			t.Errorf("from the fence point on, etcd silent: %d %s", code, got)
		}
		if ok, word, _ := l.mayStart(); ok || word != "fenced" {
			t.Errorf("a child of ours has another gate: %t %s", ok, word)
		}
		etcd.away = false
		if _, got := gateSays(l.agent); got != gateOpen {
			t.Errorf("etcd answers again: %s", got)
		}
	})
}

// The lease may have ended meanwhile, and the clock does not tell.
func TestTheGateAsksEtcdAfterAPauseOfTheMachine(t *testing.T) {
	etcd := &reachable{away: true}
	inLifeAfter(t, nil, func(l *sidecarLife) {
		l.main = cluster.Over(l.cfg.Cluster(), etcd, nil)
		l.openChild()
	}, func(l *sidecarLife) {
		l.set(func() { l.away = true })
		l.paused(2 * time.Second)
		for range 2 { // before the loop has run, and after
			if ok, word, _ := l.mayStart(); ok || word != "fenced" {
				t.Errorf("%t %s", ok, word)
			}
			l.until(l.age() + loopEvery)
		}
		l.set(func() { l.away = false })
		l.until(l.age() + 5*time.Second)
		if ok, _, why := l.mayStart(); !ok {
			t.Errorf("renewed: %s", why)
		}
	})
}

func TestTheGateOfARestartedSidecarWaitsForEtcd(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(a *agent)
		open   bool
	}{
		{"registered by an earlier life", func(a *agent) { a.memory.LeaseID = 7 }, false},
		{"never registered", func(*agent) {}, true},
		{"in shadow", func(a *agent) { a.memory.LeaseID, a.shadow = 7, &shadow{} }, true},
		{"without detachment", func(a *agent) { a.memory.LeaseID, a.cfg.Detach = 7, false }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := built(t)
			a.life0 = t.Context()
			a.main = cluster.Over(a.cfg.Cluster(), &reachable{away: true}, nil)
			row.change(a)
			a.openChild()
			stop := looping(a)
			defer stop()
			if _, got := gateSays(a); (got == gateOpen) != row.open {
				t.Errorf("it says %s", got)
			}
		})
	}
}

// looping takes what is for the loop, until it is stopped.
func looping(a *agent) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case f := <-a.inbox:
				f()
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

func TestASidecarWhoseLoopHangsOpensNoGate(t *testing.T) {
	a := built(t)
	a.openChild()
	if code, got := gateSays(a); code != http.StatusServiceUnavailable || !strings.Contains(got, "the sidecar's loop hangs") {
		t.Errorf("%d %s", code, got)
	}
}
