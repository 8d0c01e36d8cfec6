package simulation

import (
	"path"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// limit is how many requests of one kind a sidecar may send within a second and within ten, to
// each member of etcd that it knows. README.md says why.
type limit struct{ second, ten int }

var (
	limits = map[string]limit{
		"LeaseKeepAlive":  {30, 100},
		"LeaseGrant":      {10, 30},
		"LeaseRevoke":     {10, 30},
		"LeaseTimeToLive": {30, 60},
		"Range":           {30, 100},
		"Txn":             {70, 140},
		"Watch":           {20, 50}, // streams
		watches:           {40, 100},
	}
	otherwise = limit{10, 30}
)

// watches is the kind of the requests for a watch, on whatever stream.
const watches = "WatchCreate"

// requests counts what one sidecar has sent of late.
type requests struct {
	mu   sync.Mutex
	sent map[string][]time.Time
	told map[string]bool
}

// sends takes a request that leaves the sidecar.
func (l *life) sends(kind string) {
	now := time.Now()
	r := &l.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent == nil {
		r.sent, r.told = map[string][]time.Time{}, map[string]bool{}
	}
	list := append(r.sent[kind], now)
	for now.Sub(list[0]) >= 10*time.Second {
		list = list[1:]
	}
	r.sent[kind] = list
	second := 0
	for i := len(list) - 1; i >= 0 && now.Sub(list[i]) < time.Second; i-- {
		second++
	}
	most, known := limits[kind]
	if !known {
		most = otherwise
	}
	if n := l.node.fleet.settings.endpoints(); (second > most.second*n || len(list) > most.ten*n) && !r.told[kind] {
		r.told[kind] = true
		l.node.fleet.checks.fail("the sidecar of %s sends %d %s in a second, and %d in ten", l.node.id, second, kind, len(list))
	}
}

// counted is a stream of which the requests for watches are counted.
type counted struct {
	grpc.ClientStream
	life *life
}

func (c counted) SendMsg(m any) error {
	if w, ok := m.(*pb.WatchRequest); ok && w.GetCreateRequest() != nil {
		c.life.sends(watches)
	}
	return c.ClientStream.SendMsg(m)
}

// endpoints is how many members of etcd a sidecar knows.
func (s settings) endpoints() int {
	if s.Several {
		return members
	}
	return 1
}

func kindOf(method string) string { return path.Base(method) }
