package clustertest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"holdfast/cluster"
)

// What etcd answers that says nothing of its health, nor of the way to it, must not be
// taken for either.
func TestARequestThatIsRefusedForItselfHasNoClass(t *testing.T) {
	onEach(t, func(t *testing.T, s *server) {
		c := open(t, s.config(t))
		_, _, err := c.Grant(bounded(t), 290*365*24*time.Hour)
		if class := cluster.Classify(err); err == nil || class != cluster.ClassOther {
			t.Errorf("a TTL of centuries: %v of class %q", err, class)
		}
	})
}

// A member that only learns refuses everything. With a voter beside it the renewals get
// through at the second attempt.
func TestALineLeavesALearner(t *testing.T) {
	voter, _ := ownEtcd(t, nil)
	raw := rawClient(t, clientv3.Config{Endpoints: []string{voter.AdvertiseClientUrls[0].String()}})
	cfg, err := etcdConfig(t.TempDir(), "learner")
	if err != nil {
		t.Fatal(err)
	}
	peer := cfg.AdvertisePeerUrls[0].String()
	if _, err := raw.MemberAddAsLearner(bounded(t), []string{peer}); err != nil {
		t.Fatal(err)
	}
	cfg.InitialCluster, cfg.ClusterState = voter.InitialCluster+",learner="+peer, embed.ClusterStateFlagExisting
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(server.Close))

	learner := cfg.AdvertiseClientUrls[0].String()
	id := lease(t, open(t, cluster.Config{Endpoints: []string{voter.AdvertiseClientUrls[0].String()}}), time.Minute)
	alone := openLine(t, cluster.Config{Endpoints: []string{learner}})
	for ctx := bounded(t); ; {
		_, err := alone.KeepAlive(ctx, id, false)
		if err == nil {
			t.Fatal("a learner renewed a lease: is it one?")
		}
		if strings.Contains(err.Error(), "not supported for learner") {
			if class := cluster.Classify(err); class != cluster.ClassOther {
				t.Errorf("%v of class %q", err, class)
			}
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("never refused as a learner does: %v", err)
		}
	}
	for range 8 { // a line begins with any of its endpoints
		l := openLine(t, cluster.Config{Endpoints: []string{learner, voter.AdvertiseClientUrls[0].String()}})
		err := renewOnce(t.Context(), l, id)
		if err != nil {
			err = renewOnce(t.Context(), l, id)
		}
		if err != nil {
			t.Errorf("the second attempt: %v", err)
		}
	}
}

func renewOnce(ctx context.Context, l *cluster.Line, id int64) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, err := l.KeepAlive(ctx, id, false)
	return err
}
