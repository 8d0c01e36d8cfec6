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
	admin := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}})
	ctx := bounded(t)
	for _, err := range []error{
		ignore(admin.RoleAdd(ctx, "root")), ignore(admin.UserAdd(ctx, "root", "secret")), ignore(admin.UserGrantRole(ctx, "root", "root")),
		ignore(admin.UserAdd(ctx, "guest", "guest")), ignore(admin.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	password := t.TempDir() + "/password"
	write(t, password, "guest")
	c := open(t, cluster.Config{Endpoints: []string{endpoint}, User: "guest", PasswordFile: password})
	got, err := c.Version(bounded(t))
	if err != nil || got != version.Version {
		t.Errorf("%q %v, want %s", got, err, version.Version)
	}
	if _, stale := cluster.StaleReads(got); stale {
		t.Errorf("the reads of %s are taken for stale", got)
	}
}
