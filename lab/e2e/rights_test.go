package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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
			n.saysWhatIsDenied("hf", "/cluster/register/")
		})
	}
}

// saysWhatIsDenied takes the right to read a range from the node's user, which what it does at its
// registration needs, and gives it back. The lease is renewed all the while.
func (n *node) saysWhatIsDenied(role, keys string) {
	n.t.Helper()
	denied := func() float64 {
		text, err := n.sidecar.Metrics(n.ctx)
		n.must(err)
		v, _ := seriesValue(text, `holdfast_etcd_denied_total{for="registration"}`)
		return v
	}
	before, from, end := denied(), time.Now(), clientv3.GetPrefixRangeEnd(keys)
	_, err := n.etcd.Client().RoleRevokePermission(n.ctx, role, keys, end)
	n.must(err)
	n.pause("1m")
	n.verb("resume") // has the registration looked at anew
	refused, remedy := `--etcd-user "`+role+`": etcd refuses it: permission denied to read `+keys, `: etcdctl role grant-permission ROLE --prefix=true read `+keys+": see docs"
	st := n.await("that a right is denied", func(st harness.Status) bool {
		return strings.Contains(st.Summary, refused) && strings.Contains(st.Summary, remedy) && st.Lease.FailureStreak == 0
	})
	if st.Severity != "warning" || !st.Ready.OK || !strings.Contains(st.Summary, "Denied (registration): ") {
		n.t.Errorf("%s: %s", st.Severity, st.Summary)
	}
	if text := n.verb("status"); !strings.Contains(text, "\ndenied        registration, since ") {
		n.t.Errorf("status says:\n%s", text)
	}
	if page, err := http.Get(n.sidecar.WebURL() + "/api/status"); err != nil {
		n.t.Error(err)
	} else {
		defer page.Body.Close()
		if text, err := io.ReadAll(page.Body); err != nil || !strings.Contains(string(text), `"key": "`+keys) {
			n.t.Errorf("the page is told %s, %v", text, err)
		}
	}
	// What would be denied is found before anything is withdrawn, also beside a sidecar that runs.
	left, err := n.sidecar.Verb(n.ctx, "leave")
	n.must(err)
	bin, err := harness.Build(harness.Holdfast)
	n.must(err)
	checked, err := harness.RunHoldfast(n.ctx, bin, append([]string{"check"}, n.sidecar.Args()[1:]...)...)
	n.must(err)
	for verb, res := range map[string]harness.Result{"leave": left, "check": checked} {
		if res.Exit == 0 || !strings.Contains(res.Stdout+res.Stderr, "permission denied to read "+keys) {
			n.t.Errorf("%s: %+v", verb, res)
		}
	}
	if st, err := n.sidecar.Status(n.ctx); err != nil || !st.Ready.OK || !strings.Contains(left.Stderr, "nothing was withdrawn") {
		n.t.Errorf("after a leave that etcd would not note: %s; %+v", st.Summary, left)
	}
	n.awaitEvent(from, "etcd", "denied")
	n.must(harness.Await(n.ctx, bound, "more than one request denied", func(context.Context) (bool, string) {
		now := denied()
		return now > before+1, fmt.Sprint(now) // what the alert is about
	}))
	_, err = n.etcd.Client().RoleGrantPermission(n.ctx, role, keys, end, clientv3.PermissionType(clientv3.PermRead))
	n.must(err)
	n.awaitEvent(from, "etcd", "over")
	n.await("that nothing is denied", func(st harness.Status) bool {
		return st.Ready.OK && st.Severity == "ok" && !strings.Contains(st.Summary, "enied")
	})
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
	return s.passwordOf(role)
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
// and drained away. Without the last block nothing moves, and nothing is touched.
func TestTheRightsOnThePageAreEnoughToMoveTopics(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.must(s.etcd.EnableAuth(s.ctx, "root-word", "hf", "hf-word", ""))
	s.watch()
	nodes := map[string]*node{}
	for id, blocks := range map[string]int{"n1": 3, "n2": 3, "n3": 2} {
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
	nodes["n1"].activate() // and back again, as docs/moves.md has it
	for _, topic := range []string{"/default/n1-a", "/default/n1-b"} {
		nodes["n2"].verb("unload", topic, "--to", "n1")
	}
	nodes["n1"].publishes()
	s.refusedNothing()
	n3 := nodes["n3"]
	denied := func(exit int, where string, verb ...string) {
		t.Helper()
		if res, err := n3.sidecar.Verb(s.ctx, verb[0], verb[1:]...); err != nil || res.Exit != exit || !strings.Contains(res.Stderr, "permission denied to "+where+": etcdctl role grant-permission ROLE ") {
			t.Errorf("%s without the rights: want %d and %s: %+v, %v", verb, exit, where, res, err)
		}
	}
	denied(2, "write /cluster/moves/default/n3-a", "unload", "/default/n3-a")
	denied(2, "write /cluster/moves/default/n3-a", "unload", "/default/n3-a", "--dry-run")
	denied(2, "write /cluster/moves/default/n3-a", "drain", "--move", "--dry-run")

	// Of a target that may not write the journal the source says whose turn it is, and the target why.
	unloaded := make(chan harness.Result)
	go func() {
		res, err := nodes["n1"].sidecar.Verb(s.ctx, "unload", "/default/n1-a", "--to", "n3")
		s.should(err)
		unloaded <- res
	}()
	n3.await("that it may not write", func(st harness.Status) bool {
		return strings.Contains(st.Summary, "permission denied to write /cluster/moves/default/n1-a: etcdctl role grant-permission ROLE --prefix=true readwrite /cluster/moves/: see docs")
	})
	const turn = "n3's turn: it has said nothing: 'holdfast status' at n3, or 'holdfast moves cancel "
	var id string
	s.must(harness.Await(s.ctx, bound, "whose turn it is", func(context.Context) (bool, string) {
		said := nodes["n1"].verb("moves")
		_, rest, found := strings.Cut(said, turn)
		id, _, _ = strings.Cut(rest, "'")
		return found, said
	}))
	nodes["n1"].verb("moves", "cancel", id)
	if res := <-unloaded; res.Exit == 0 || !strings.Contains(res.Stderr, "cancelled") {
		t.Errorf("unload to who may not write: %+v", res)
	}
	all := rightsOfThePage(t, 3)
	s.grant("hf-n3", "n3", all[:len(all)-1])
	n3.verb("unload", "/default/n3-a", "--dry-run")
	denied(2, "write /cluster/locks/drain", "drain", "--move", "--dry-run")
	denied(2, "write /cluster/locks/drain", "drain", "--move")
	if moved, err := s.etcd.Client().Get(s.ctx, "/cluster/moves/default/n3-a"); err != nil || moved.Count > 0 {
		t.Errorf("a move that was refused has a journal: %v, %v", moved, err)
	}

	// A right that is taken away while a drain waits for its turn ends it.
	s.grant("hf-n3", "n3", all)
	_, err := s.etcd.Client().Put(s.ctx, "/cluster/locks/drain", `{"broker_id":"n9"}`)
	s.must(err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		denied(4, "read /cluster/locks/drain", "drain", "--move")
	}()
	s.must(harness.Await(s.ctx, bound, "the drain that waits", func(ctx context.Context) (bool, string) {
		said, err := n3.sidecar.Ask(ctx, "/v1/drain/move")
		return err == nil && strings.Contains(said, "n9"), said
	}))
	n3.verb("drain", "--move", "--dry-run") // prints a plan, and does not follow the one under way
	_, err = s.etcd.Client().RoleRevokePermission(s.ctx, "hf-n3", "/cluster/locks/drain", clientv3.GetPrefixRangeEnd("/cluster/locks/drain"))
	s.must(err)
	<-ended
	nodes["n3"].publishes()
}

var (
	recipeBlock = regexp.MustCompile("(?ms)^```\n(etcdctl user .*?)^```$")
	recipeLine  = regexp.MustCompile(`^etcdctl (user add|user grant-role|role add|auth enable) ?(\S*) ?(\S*)$`)
	anyGrant    = regexp.MustCompile(`^etcdctl role grant-permission (\S+) (--prefix=true )?(read|readwrite) (/\S+)$`)
)

// follow carries out a block of commands of the page, with cn in place of the CN there.
func (s *stage) follow(block, cn string) {
	s.t.Helper()
	root := s.etcd.Client()
	for line := range strings.Lines(strings.ReplaceAll(block, "n1.example.org", cn)) {
		line = strings.TrimSpace(line)
		var err error
		if m := anyGrant.FindStringSubmatch(line); m != nil {
			kind, end := clientv3.PermissionType(clientv3.PermRead), ""
			if m[3] == "readwrite" {
				kind = clientv3.PermissionType(clientv3.PermReadWrite)
			}
			if m[2] != "" {
				end = clientv3.GetPrefixRangeEnd(m[4])
			}
			_, err = root.RoleGrantPermission(s.ctx, m[1], m[4], end, kind)
		} else if m := recipeLine.FindStringSubmatch(line); m != nil {
			switch m[1] {
			case "user add":
				_, err = root.UserAddWithOptions(s.ctx, m[2], "hf-word", &clientv3.UserAddOptions{NoPassword: m[3] == "--no-password"})
			case "user grant-role":
				_, err = root.UserGrantRole(s.ctx, m[2], m[3])
			case "role add":
				_, err = root.RoleAdd(s.ctx, m[2])
			case "auth enable":
				_, err = root.AuthEnable(s.ctx)
				s.must(s.etcd.AsRoot("hf-word"))
				root = s.etcd.Client()
			}
		} else {
			s.t.Fatalf("the page says %q, of which nothing is known here", line)
		}
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
	}
}

// From an etcd without users the commands of the page lead to a sidecar that works, each way. A right that
// is taken away is told with user and key.
func TestTheRecipesForUsersOnThePageWork(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes, roles := recipeBlock.FindAllStringSubmatch(string(page), -1), rightsBlock.FindAllStringSubmatch(string(page), -1)
	if len(recipes) != 3 {
		t.Fatalf("%d recipes on the page", len(recipes))
	}
	all, each, certificate := recipes[0][1], roles[0][1]+recipes[1][1], recipes[2][1]
	for _, c := range []struct{ name, recipe, user, role, who string }{
		{"one user for all", all, "holdfast", "holdfast", `--etcd-user "holdfast"`},
		{"a user for each", each, "holdfast-n1", "holdfast-n1", `--etcd-user "holdfast-n1"`},
		{"the CN of a certificate", each + certificate, "", "holdfast-n1", "(its CN)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &stage{Lab: harness.ForTest(t), kind: natsKind, t: t, ctx: t.Context()}
			ours, err := s.NewAuthority("ours")
			s.must(err)
			s.etcd, err = s.StartEtcd(s.ctx, harness.EtcdOptions{TLS: ours})
			s.must(err)
			_, err = s.etcd.Client().Put(s.ctx, "/topics/default/n1-a", "{}")
			s.must(err)
			cert, key, err := ours.Issue("of-n1")
			s.must(err)
			s.follow(c.recipe, "of-n1")
			s.watch()
			o := nodeOptions{Topics: []string{"/default/n1-a"}, TTL: time.Minute}
			if o.Flags = s.passwordOf(c.user); c.user == "" {
				o.Etcd, o.Flags = s.etcd.Secure, []string{"--etcd-cacert", ours.CACert, "--etcd-cert", cert, "--etcd-key", key}
			}
			n := s.prepare("n1", o)
			n.start()
			n.awaitReady()
			n.publishes()
			s.refusedNothing()
			reload := func(exit int, want string) {
				t.Helper()
				if res, err := n.sidecar.Verb(s.ctx, "reload"); err != nil || res.Exit != exit || !strings.Contains(res.Stdout+res.Stderr, want) {
					t.Errorf("reload: want %d and %q: %+v, %v", exit, want, res, err)
				}
			}
			if c.user == "" {
				reload(0, "nothing changed; --etcd-cert "+cert+" lasts until ")
			} else {
				password := filepath.Join(s.Dir, c.user+".password")
				s.must(os.WriteFile(password, []byte("wrong\n"), 0o600))
				reload(2, "etcd refuses us: authentication failed, invalid user ID or password: check --etcd-password-file "+strconv.Quote(password))
				s.must(os.WriteFile(password, []byte("hf-word\n"), 0o600))
			}
			reload(0, "etcd lets us in")

			user := c.user
			if user == "" {
				user = "of-n1"
			}
			_, err = s.etcd.Client().UserRevokeRole(s.ctx, user, c.role)
			s.must(err)
			st := n.await("that etcd refuses it", func(st harness.Status) bool { return st.Lease.FailureStreak > 0 })
			for _, want := range []string{"etcd refuses", c.who, "permission denied to ", ": etcdctl role grant-permission ROLE "} {
				if !strings.Contains(st.Summary, want) {
					t.Errorf("the summary does not say %q: %s", want, st.Summary)
				}
			}
			reload(0, "etcd does not let us in, and its settings and files are those of before: ")
			if res, err := n.sidecar.Verb(s.ctx, "drain"); err != nil || res.Exit == 0 || !strings.Contains(res.Stderr, "permission denied to read /cluster/") || !strings.Contains(res.Stderr, c.who) {
				t.Errorf("a verb: %+v, %v", res, err)
			}
			_, err = s.etcd.Client().UserGrantRole(s.ctx, user, c.role)
			s.must(err)
			n.await("renewals", func(st harness.Status) bool { return st.Lease.FailureStreak == 0 && st.Ready.OK })
		})
	}
}

// passwordOf are the flags of a user whose password is hf-word.
func (s *stage) passwordOf(user string) []string {
	s.t.Helper()
	password := filepath.Join(s.Dir, user+".password")
	s.must(os.WriteFile(password, []byte("hf-word\n"), 0o600))
	return []string{"--etcd-user", user, "--etcd-password-file", password}
}
