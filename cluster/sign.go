package cluster

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// sign asks the stream itself for a sign of life: what stands between may answer pings, pass
// reads on, and keep back what is told to watches. etcd does not answer a progress request
// before it has reached the revision at which each watch begins, which on a quiet store is
// the next one, and its own proxy never does. A request for a watch is always answered.
func (s *watches) sign(ctx context.Context, t *watchStream) bool {
	select {
	case <-t.told: // before the question
	default:
	}
	for _, ask := range []func(*watcher){t.askProgress, t.askEmptyWatch} {
		s.mu.Lock()
		w := t.any()
		if w != nil {
			ask(w)
		}
		s.mu.Unlock()
		if w == nil {
			return true
		}
		bound := time.NewTimer(pageTimeout)
		select {
		case <-ctx.Done():
		case <-t.told:
		case <-bound.C:
			continue
		}
		bound.Stop()
		return true
	}
	return false
}

// any returns a watcher whose watch etcd has taken up, nil if there is none. The caller holds
// the mutex.
func (t *watchStream) any() *watcher {
	for _, w := range t.byID {
		return w
	}
	return nil
}

func (t *watchStream) askProgress(*watcher) {
	_ = t.rpc.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
		ProgressRequest: &etcdserverpb.WatchProgressRequest{}}})
}

// askEmptyWatch asks for a watch without events, of what is watched already and so may be
// read. Nobody waits for it: it is cancelled when it is answered.
func (t *watchStream) askEmptyWatch(like *watcher) {
	empty := &watcher{stream: t, left: true, more: make(chan struct{}, 1),
		creates: []*etcdserverpb.WatchCreateRequest{{
			Key: like.creates[0].Key, RangeEnd: like.creates[0].RangeEnd,
			Filters: []etcdserverpb.WatchCreateRequest_FilterType{
				etcdserverpb.WatchCreateRequest_NOPUT, etcdserverpb.WatchCreateRequest_NODELETE},
		}}}
	t.asked = append(t.asked, empty)
	t.create(empty)
}
