package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// right is one line of the page about security.
type right struct {
	key, end string
	kind     clientv3.PermissionType
}

var (
	rightsBlock = regexp.MustCompile("(?ms)^```\n(etcdctl role .*?)^```$")
	rightLine   = regexp.MustCompile(`^etcdctl role grant-permission holdfast-n1 (--prefix=true )?(read|readwrite) (/\S+)$`)
)

// rightsOfThePage are those of the first so many blocks of docs/security.md.
func rightsOfThePage(t *testing.T, blocks int) (all []right) {
	t.Helper()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	found := rightsBlock.FindAllStringSubmatch(string(page), -1)
	if len(found) < blocks {
		t.Fatalf("%d blocks of etcdctl on the page, want %d", len(found), blocks)
	}
	for _, block := range found[:blocks] {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			m := rightLine.FindStringSubmatch(line)
			if m == nil {
				if line == "etcdctl role add holdfast-n1" {
					continue
				}
				t.Fatalf("the page says %q, of which nothing is known here", line)
			}
			r := right{key: m[3], kind: clientv3.PermissionType(clientv3.PermRead)}
			if m[2] == "readwrite" {
				r.kind = clientv3.PermissionType(clientv3.PermReadWrite)
			}
			if m[1] != "" {
				r.end = clientv3.GetPrefixRangeEnd(r.key)
			}
			all = append(all, r)
		}
	}
	return all
}

// A sidecar with the rights of docs/security.md, and no other, registers, loads, drains,
// activates and comes back; what they do not name it cannot write.
func TestTheRightsOnThePageAreEnoughAndNoMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		blocks int
		flags  []string
		denied []string
	}{
		{"topics that others assign", 1, nil,
			[]string{"/cluster/brokers/n2/state", "/cluster/brokers/n1/default/x", "/cluster/moves/default/x", "/cluster/locks/drain", "/cluster/drains/n2", "/cluster/register/n2", "/cluster/owners/default/x", "/topics/default/x", "/elsewhere"}},
		{"topics that are shared out, and move", 3, []string{"--assignment", "rendezvous"},
			[]string{"/cluster/register/n2", "/cluster/members/n2", "/cluster/drains/n2", "/topics/default/x", "/elsewhere"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.must(s.etcd.EnableAuth(s.ctx, "root-word", "hf", "hf-word", ""))
			s.watch()
			root := s.etcd.Client()
			_, err := root.RoleRevokePermission(s.ctx, "hf", "\x00", "\x00")
			s.must(err)
			user := s.grant("hf", "n1", rightsOfThePage(t, c.blocks))
			topics := []string{"/default/n1-a", "/default/n1-b"}
			for _, topic := range topics {
				_, err := root.Put(s.ctx, "/topics"+topic, "{}")
				s.must(err)
			}
			o := nodeOptions{Topics: topics, Flags: append(user, c.flags...)}
			peer, err := root.Grant(s.ctx, 60)
			s.must(err)
			_, err = root.Put(s.ctx, "/cluster/register/n2", "{}", clientv3.WithLease(peer.ID))
			s.must(err)
			alive, err := root.KeepAlive(s.ctx, peer.ID)
			s.must(err)
			go func() {
				for range alive {
				}
			}()
			n := s.prepare("n1", o)
			n.start()
			n.awaitReady()
			n.await("its topics", func(st harness.Status) bool { return st.Topics.Served == len(topics) })
			n.publishes()
			if res, err := n.sidecar.Verb(s.ctx, "drain", "--reason", "e2e"); err != nil || res.Exit != 0 {
				t.Fatalf("drain: %+v, %v", res, err)
			}
			n.activate()
			n.publishes()
			from := s.revision()
			n.kill()
			n.awaitExpiry(from)
			n.start()
			n.await("n2 was seen alive", func(st harness.Status) bool { return st.Mode == "drained" && st.Reason == "stale_restart" })
			n.activate()
			n.publishes()
			s.refusedNothing()

			hf, err := s.etcd.Connect("hf", "hf-word")
			s.must(err)
			defer hf.Close()
			for _, key := range c.denied {
				if _, err := hf.Put(s.ctx, key, "x"); err != rpctypes.ErrPermissionDenied {
					t.Errorf("writing %s: %v, want it refused", key, fmt.Sprint(err))
				}
			}
		})
	}
}

// grant gives a role the rights of a broker, and returns the flags of the user of that name.
func (s *stage) grant(role, id string, rights []right) []string {
	s.t.Helper()
	for _, r := range rights {
		key, end := strings.ReplaceAll(r.key, "/n1", "/"+id), r.end
		if end != "" {
			end = clientv3.GetPrefixRangeEnd(key)
		}
		_, err := s.etcd.Client().RoleGrantPermission(s.ctx, role, key, end, r.kind)
		s.must(err)
	}
	password := filepath.Join(s.Dir, role+".password")
	s.must(os.WriteFile(password, []byte("hf-word\n"), 0o600))
	return []string{"--etcd-user", role, "--etcd-password-file", password}
}

// refusedNothing looks at etcd's own count of what it has refused.
func (s *stage) refusedNothing() {
	s.t.Helper()
	said, err := etcdMetrics(s.ctx, s.etcd)
	s.must(err)
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "grpc_server_handled_total{") && strings.Contains(line, `"PermissionDenied"`) && !strings.HasSuffix(line, " 0\n") {
			s.t.Errorf("etcd refused something: %s", line)
		}
	}
}

// Two sidecars, each with a user of its own and the rights of the page: topics move, are called off
// and drained away. With the first block alone nothing moves, and nothing is touched.
func TestTheRightsOnThePageAreEnoughToMoveTopics(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(s.etcd.EnableAuth(s.ctx, "root-word", "hf", "hf-word", ""))
	s.watch()
	nodes := map[string]*node{}
	for id, blocks := range map[string]int{"n1": 3, "n2": 3, "n3": 1} {
		role := "hf-" + id
		_, err := s.etcd.Client().RoleAdd(s.ctx, role)
		s.must(err)
		_, err = s.etcd.Client().UserAdd(s.ctx, role, "hf-word")
		s.must(err)
		_, err = s.etcd.Client().UserGrantRole(s.ctx, role, role)
		s.must(err)
		nodes[id] = s.prepare(id, nodeOptions{Flags: s.grant(role, id, rightsOfThePage(t, blocks))})
		nodes[id].start()
	}
	for _, n := range nodes {
		n.awaitReady()
	}
	nodes["n1"].verb("unload", "/default/n1-a", "--to", "n2")
	nodes["n2"].verb("unload", "/default/n1-a", "--to", "n1")
	nodes["n1"].verb("drain", "--move", "--to", "n2")
	s.refusedNothing()
	if res, err := nodes["n3"].sidecar.Verb(s.ctx, "unload", "/default/n3-a"); err != nil || res.Exit == 0 || !strings.Contains(res.Stderr, "permission denied") {
		t.Errorf("without the rights: %+v, %v", res, err)
	}
	nodes["n3"].publishes()
}
