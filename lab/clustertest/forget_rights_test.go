package clustertest

import (
	"os"
	"path/filepath"
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
	for _, err := range []error{
		ignore(admin.RoleAdd(ctx, "root")), ignore(admin.UserAdd(ctx, "root", "secret")), ignore(admin.UserGrantRole(ctx, "root", "root")),
		ignore(admin.RoleAdd(ctx, "operator")), ignore(admin.UserAdd(ctx, "op", "word")), ignore(admin.UserGrantRole(ctx, "op", "operator")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	grants := regexp.MustCompile(`(?m)^etcdctl role grant-permission holdfast-operator --prefix=true (read|readwrite) (/\S+)$`).FindAllStringSubmatch(string(page), -1)
	if len(grants) < 5 {
		t.Fatalf("the page names %d rights", len(grants))
	}
	for _, g := range grants {
		kind := clientv3.PermissionType(clientv3.PermRead)
		if g[1] == "readwrite" {
			kind = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		must[*clientv3.AuthRoleGrantPermissionResponse](t)(admin.RoleGrantPermission(ctx, "operator", g[2], clientv3.GetPrefixRangeEnd(g[2]), kind))
	}
	must[*clientv3.AuthEnableResponse](t)(admin.AuthEnable(ctx))
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, "word")
	c := open(t, cluster.Config{Endpoints: []string{endpoint}, User: "op", PasswordFile: password})
	unassigned := must[[]string](t)(c.Forget(bounded(t), must[cluster.Remains](t)(c.Remains(bounded(t), "n9"))))
	if len(unassigned) != 1 {
		t.Errorf("unassigned %v", unassigned)
	}
	root := rawClient(t, clientv3.Config{Endpoints: []string{endpoint}, Username: "root", Password: "secret"})
	if left := must[*clientv3.GetResponse](t)(root.Get(bounded(t), "/cluster/", clientv3.WithPrefix(), clientv3.WithKeysOnly())); left.Count != 1 {
		t.Errorf("left is %v, want the topic that waits", left.Kvs)
	}
}
