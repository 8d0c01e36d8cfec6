package clustertest

import (
	"slices"
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
	got, id, err := c.Version(bounded(t))
	if err != nil || got != version.Version {
		t.Errorf("%q %v, want %s", got, err, version.Version)
	}
	members, err := c.EtcdMembers(bounded(t))
	if err != nil || len(members) != 1 || members[0].ID != id || !slices.Contains(members[0].ClientURLs, endpoint) {
		t.Errorf("members %+v %v, want %x at %s", members, err, id, endpoint)
	}
	if _, stale := cluster.StaleReads(got); stale {
		t.Errorf("the reads of %s are taken for stale", got)
	}
}
