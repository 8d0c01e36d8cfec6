package clustertest

import (
	"testing"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

func TestEtcdTellsItsVersionToAUserWithoutRights(t *testing.T) {
	server, _ := ownEtcd(t, nil)
	endpoint := server.AdvertiseClientUrls[0].String()
	users(t, rawClient(t, clientv3.Config{Endpoints: []string{endpoint}}), map[string]map[string]clientv3.PermissionType{"guest": nil})
	c := open(t, as(t, endpoint, "guest", "guest"))
	got, err := c.Version(bounded(t))
	if err != nil || got != version.Version {
		t.Errorf("%q %v, want %s", got, err, version.Version)
	}
	if _, stale := cluster.StaleReads(got); stale {
		t.Errorf("the reads of %s are taken for stale", got)
	}
}
