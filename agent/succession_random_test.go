package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/agent/control"
	etcd "holdfast/cluster/memory"
)

// lossy loses answers of etcd: what was asked for was done, and nobody knows.
type lossy struct {
	grpc.ClientConnInterface
	n *numbered
}

func (l lossy) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if l.cut() {
		return errSilence
	}
	if q, ok := args.(*etcdserverpb.TxnRequest); ok && l.n.full.Load() && slices.ContainsFunc(q.Success, writes) {
		return etcd.ErrNoSpace
	}
	err := l.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if err == nil && l.n.loses != nil && l.n.loses(method) {
		return errSilence
	}
	return err
}

func writes(op *etcdserverpb.RequestOp) bool { return op.GetRequestRange() == nil }

func (l lossy) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if l.cut() {
		return nil, errSilence
	}
	return l.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

func (l lossy) cut() bool { l.n.mu.Lock(); defer l.n.mu.Unlock(); return l.n.cut }

// says gives a person's order; ok is false if it is not known whether it was taken.
func (n *numbered) says(verb string) (ok bool) {
	n.mu.Lock()
	h := n.servers["--control-socket"]
	n.mu.Unlock()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/"+verb, strings.NewReader(`{"reason":"disk swap","timeout_seconds":1}`)))
	return w.Code == http.StatusOK || strings.Contains(w.Body.String(), "is drained")
}

// Restarts of the broker, some before it registered itself and some after the TTL, kills of
// the sidecar and orders of a person, each at any moment, while requests to etcd and its
// answers are lost. The seed is the test's name.
func TestSuccessionsEndWellWhateverComesTogether(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var mu sync.Mutex
			source := rand.New(rand.NewPCG(seed, 1))
			draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return source.IntN(n) }
			attached(t, someTopics([]int{3, 120, 250}[draw(3)]), func(n *numbered, stop func(error) error) {
				fails := func(of4 int) func(string) bool {
					return func(method string) bool { return strings.HasSuffix(method, "/Txn") && draw(4) < of4 }
				}
				id, word, story := 11, "", ""
				for range 1 + draw(6) {
					time.Sleep(time.Duration(draw(3000)) * time.Millisecond)
					lost, unheard := fails(draw(4)), fails(draw(4))
					n.store.SetFault(func(method string) error {
						if lost(method) {
							return errSilence
						}
						return nil
					})
					n.set(func() { n.loses = unheard })
					switch what := draw(10); {
					case what < 7:
						n.kill()
						n.store.SetFault(nil) // the broker's own way is not cut
						time.Sleep(time.Duration(draw(2000)) * time.Millisecond)
						if draw(6) == 0 {
							time.Sleep(40 * time.Second)
							story += " late"
						}
						id++
						story += fmt.Sprintf(" %d", id)
						n.start(fmt.Sprint(id), time.Duration(draw(3))*time.Second)
					case what < 9:
						verb := []string{"drain", "activate"}[draw(2)]
						story += " " + verb
						if word = verb; !n.says(verb) {
							word = ""
						}
					default:
						story += " sidecar"
						_ = stop(ErrKilled)
						stop = n.sidecar(nil)
						time.Sleep(time.Second)
					}
				}
				n.store.SetFault(nil)
				n.set(func() { n.loses = nil })
				time.Sleep(time.Second)
				is := fmt.Sprint(id)
				n.becomes("settled as "+is, func(s control.Status) bool {
					return s.Registration.ID == is && s.Lease.ID != "" && (s.Ready.OK || s.Mode == "drained")
				})
				time.Sleep(2 * time.Minute)
				s := n.status()
				if s.Ready.OK != (s.Mode == "active") || s.Registration.State != "held" {
					t.Errorf("%s: %+v", story, s)
				}
				if word == "drain" && (s.Mode != "drained" || s.Reason != "disk swap") {
					t.Errorf("%s: it is %s (%s)", story, s.Mode, s.Reason)
				}
				for earlier := 11; earlier < id; earlier++ {
					if left := n.assigned(fmt.Sprint(earlier)); len(left) > 0 {
						t.Errorf("%s: left with %d: %v", story, earlier, left)
					}
				}
				n.wantNoHarm()
				_ = stop(ErrKilled)
			})
		})
	}
}
