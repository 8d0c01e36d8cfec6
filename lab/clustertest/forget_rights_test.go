package clustertest

import (
	"os"
	"regexp"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/cluster"
)

// The rights on the page about security are enough to forget a broker.
func TestAnOperatorWithTheRightsOnThePageForgets(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	server, _ := ownEtcd(t, nil)
	endpoint := server.AdvertiseClientUrls[0].String()
	admin := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}})
	ctx := bounded(t)
	k := cluster.NewKeys("")
	for key, value := range map[string]string{k.Member("n9"): `{"era":1}`, k.State("n9"): `{"mode":"active"}`, k.Load("n9"): "{}", k.Assignment("n9", "/ns/a"): "null"} {
		must[*clientv3.PutResponse](t)(admin.Put(ctx, key, value))
	}
	grants := regexp.MustCompile(`(?m)^etcdctl role grant-permission holdfast-operator --prefix=true (read|readwrite) (/\S+)$`).FindAllStringSubmatch(string(page), -1)
	if len(grants) < 5 {
		t.Fatalf("the page names %d rights", len(grants))
	}
	rights := map[string]clientv3.PermissionType{}
	for _, g := range grants {
		rights[g[2]] = map[string]clientv3.PermissionType{"read": mayRead, "readwrite": mayWrite}[g[1]]
	}
	users(t, admin, map[string]map[string]clientv3.PermissionType{"operator": rights})
	c := open(t, as(t, endpoint, "operator", "operator"))
	unassigned := must[[]string](t)(c.Forget(bounded(t), must[cluster.Remains](t)(c.Remains(bounded(t), "n9"))))
	if len(unassigned) != 1 {
		t.Errorf("unassigned %v", unassigned)
	}
	root := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "root"})
	if left := must[*clientv3.GetResponse](t)(root.Get(bounded(t), "/cluster/", clientv3.WithPrefix(), clientv3.WithKeysOnly())); left.Count != 1 {
		t.Errorf("left is %v, want the topic that waits", left.Kvs)
	}
}
