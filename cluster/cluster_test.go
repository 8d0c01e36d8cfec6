package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestKeysAreThoseOfTheContract(t *testing.T) {
	for _, layout := range []struct{ name, prefix, before string }{
		{"no prefix", "", ""},
		{"prefix", "/prod", "/prod"},
		{"trailing slashes are dropped", "/prod/", "/prod"},
	} {
		k := NewKeys(layout.prefix)
		for _, c := range []struct{ name, got, want string }{
			{"registrations", k.Registrations(), "/cluster/register/"},
			{"registration", k.Registration("b1"), "/cluster/register/b1"},
			{"brokers", k.Brokers(), "/cluster/brokers/"},
			{"state", k.State("b1"), "/cluster/brokers/b1/state"},
			{"assignments", k.Assignments("b1"), "/cluster/brokers/b1/"},
			{"assignment", k.Assignment("b1", "/ns/t"), "/cluster/brokers/b1/ns/t"},
			{"era", k.Era(), "/cluster/era"},
			{"members", k.Members(), "/cluster/members/"},
			{"member", k.Member("b1"), "/cluster/members/b1"},
			{"topic record", k.TopicRecord("/ns/t"), "/topics/ns/t"},
			{"unassigned", k.Unassigned("/ns/t"), "/cluster/unassigned/ns/t"},
			{"owner", k.Owner("/ns/t"), "/cluster/owners/ns/t"},
			{"load", k.Load("b1"), "/cluster/load/b1"},
		} {
			if want := layout.before + c.want; c.got != want {
				t.Errorf("%s: %s is %q, want %q", layout.name, c.name, c.got, want)
			}
		}
	}
}

func TestParsersWantExactSegments(t *testing.T) {
	k := NewKeys("/p")
	for _, c := range []struct {
		name, key                        string
		state, assignment, topic, member string
		registration                     string
	}{
		{name: "state", key: "/p/cluster/brokers/b1/state", state: "b1"},
		{name: "assignment", key: "/p/cluster/brokers/b1/ns/t", assignment: "b1", topic: "/ns/t"},
		{name: "topic called state", key: "/p/cluster/brokers/b1/ns/state", assignment: "b1", topic: "/ns/state"},
		{name: "namespace called state", key: "/p/cluster/brokers/b1/state/t", assignment: "b1", topic: "/state/t"},
		{name: "one segment that is not state", key: "/p/cluster/brokers/b1/other"},
		{name: "three segments", key: "/p/cluster/brokers/b1/ns/t/sub"},
		{name: "empty topic", key: "/p/cluster/brokers/b1/ns/"},
		{name: "empty broker", key: "/p/cluster/brokers//state"},
		{name: "empty broker with topic", key: "/p/cluster/brokers//ns/t"},
		{name: "no prefix", key: "/cluster/brokers/b1/state"},
		{name: "registration", key: "/p/cluster/register/b1", registration: "b1"},
		{name: "below a registration", key: "/p/cluster/register/b1/x"},
		{name: "empty registration", key: "/p/cluster/register/"},
		{name: "member", key: "/p/cluster/members/b1", member: "b1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if id, ok := k.ParseState(c.key); ok != (c.state != "") || ok && id != c.state {
				t.Errorf("state: %q, %v", id, ok)
			}
			if id, topic, ok := k.ParseAssignment(c.key); ok != (c.assignment != "") || ok && (id != c.assignment || topic != c.topic) {
				t.Errorf("assignment: %q %q, %v", id, topic, ok)
			}
			if id, ok := k.ParseRegistration(c.key); ok != (c.registration != "") || ok && id != c.registration {
				t.Errorf("registration: %q, %v", id, ok)
			}
			if id, ok := k.ParseMember(c.key); ok != (c.member != "") || ok && id != c.member {
				t.Errorf("member: %q, %v", id, ok)
			}
		})
	}
}

func TestStateNeedsAKnownModeAndBearsTheRest(t *testing.T) {
	for _, c := range []struct{ name, value, mode, reason string }{
		{"own", `{"mode":"drained","reason":"join","by":"agent","at":"2026-01-02T03:04:05Z"}`, "drained", "join"},
		{"Danube's", `{"mode":"active","reason":"boot"}`, "active", "boot"},
		{"extra fields", `{"mode":"draining","reason":"x","epoch":7,"more":{"a":[1]}}`, "draining", "x"},
		{"no reason", `{"mode":"active"}`, "active", ""},
		{"other types", `{"mode":"active","reason":null,"by":5,"at":1700000000}`, "active", ""},
		{"unknown mode", `{"mode":"sleeping"}`, "", ""},
		{"no mode", `{}`, "", ""},
		{"not an object", `"active"`, "", ""},
		{"not JSON", `active`, "", ""},
		{"empty", ``, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseState([]byte(c.value))
			if (err == nil) != (c.mode != "") || s.Mode != c.mode || s.Reason != c.reason {
				t.Errorf("got %+v, %v", s, err)
			}
			state, malformed := stateOf(&KV{Value: []byte(c.value), ModRevision: 9})
			if (state == nil) == (malformed == "") {
				t.Errorf("state %v and malformed %q: want exactly one", state, malformed)
			}
		})
	}
	if got := excerpt([]byte(strings.Repeat("x", 1000))); len(got) != 200 {
		t.Errorf("an excerpt has %d bytes, want 200", len(got))
	}
}

func TestAnEraThatCannotBeReadIsNamedWithItsKey(t *testing.T) {
	for _, c := range []struct {
		value   string
		counted bool // the number can be read
	}{
		{"", false},
		{"7", false},
		{"{}", false},
		{"null", false},
		{`{"era":"7"}`, false},
		{`{"era":-1}`, false},
		{`{"era":null}`, false},
		{`{"era":7.5}`, false},
		{`{"era":9223372036854775807}`, false},
		{`{"era":92233720368547758070}`, false},
		{`{"era":7,"format":2}`, false},
		{`{"era":7,"alive_until":"yesterday"}`, true},
		{`{"era":7,"alive_until":5}`, true},
		{`{"era":7,"alive_revision":"x"}`, true},
		{`{"era":7}`, true},
		{`{"era":7,"format":1,"of_a_newer_version":{"a":[1]}}`, true},
	} {
		era := eraOf(&KV{Key: "/cluster/era", Value: []byte(c.value), ModRevision: 3})
		named := strings.HasSuffix(era.Unread, " at key /cluster/era")
		if named == c.counted || c.counted && era.N != 7 || era.ModRevision != 3 {
			t.Errorf("%s: %+v", c.value, era)
		}
		member, malformed := memberOf(&KV{Value: []byte(c.value)})
		if (member == nil) != !c.counted || (malformed == "") != c.counted {
			t.Errorf("as a member record, %s: %+v, %q", c.value, member, malformed)
		}
	}
}

func TestCollapseKeepsTheLastEventOfEachKey(t *testing.T) {
	event := func(kind mvccpb.Event_EventType, key string, revision int64) *clientv3.Event {
		return &clientv3.Event{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
	}
	u := collapse([]*clientv3.Event{
		event(mvccpb.Event_PUT, "a", 2), event(mvccpb.Event_DELETE, "a", 3),
		event(mvccpb.Event_DELETE, "b", 3), event(mvccpb.Event_PUT, "b", 5), event(mvccpb.Event_PUT, "c", 5),
	})
	if got := fmt.Sprintf("%v %d %d %s %s %v", u.Full, u.Revision, len(u.Puts), u.Puts[0].Key, u.Puts[1].Key, u.Deletes); got != "false 5 2 b c [a]" {
		t.Errorf("got %s", got)
	}
}

func TestCancelledWatchGivesTheValueBehindItsText(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		want         Class
	}{
		{"gRPC error", rpctypes.ErrGRPCPermissionDenied.Error(), ClassAuth},
		{"description", rpctypes.ErrInvalidAuthToken.Error(), ClassAuth},
		{"something else", "mvcc: watcher duplicate ID", ClassOther},
	} {
		// As the etcd client has it of a watch that was refused, and of one that was cancelled.
		for _, err := range []error{rpctypes.Error(errors.New(c.reason)), rpctypes.Error(status.Error(codes.FailedPrecondition, c.reason))} {
			if got := reason(err); Classify(got) != c.want {
				t.Errorf("%s: %v of class %q, want %q", c.name, got, Classify(got), c.want)
			}
		}
	}
}

func TestRegistrationWithoutALeaseIsRefused(t *testing.T) {
	c, err := Open(Config{Endpoints: []string{"http://127.0.0.1:1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Register(t.Context(), RegisterRequest{Seen: Snapshot{Process: Process{BrokerID: "b1"}}}); !errors.Is(err, errNoLease) {
		t.Errorf("register: %v", err)
	}
}

func TestClassifyGoesByValues(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, c := range []struct {
		name string
		err  error
		want Class
	}{
		{"none", nil, ClassNone},
		{"lease gone", ErrLeaseNotFound, ClassLeaseNotFound},
		{"no leader", rpctypes.ErrNoLeader, ClassNoLeader},
		{"leader lost while waiting", rpctypes.ErrTimeoutDueToLeaderFail, ClassNoLeader},
		{"etcd timed out", rpctypes.ErrTimeout, ClassOverloaded},
		{"deadline", context.DeadlineExceeded, ClassTimeout},
		{"wrong password", rpctypes.ErrAuthFailed, ClassAuth},
		{"no permission", rpctypes.ErrPermissionDenied, ClassAuth},
		{"password file", fmt.Errorf("%w: %w", errCredentials, os.ErrNotExist), ClassAuth},
		{"certificate refused", status.Error(codes.Unavailable, "handshake failed: "+RefusedConnection+": x509"), ClassAuth},
		{"no space", rpctypes.ErrNoSpace, ClassNoSpace},
		{"refused", refused, ClassUnreachable},
		{"connection broke", status.Error(codes.Unavailable, "transport is closing"), ClassUnreachable},
		{"ended by the server", status.Error(codes.Canceled, "context canceled"), ClassUnreachable},
		{"ended by the caller", context.Canceled, ClassOther},
		{"changed", ErrChanged, ClassOther},
		{"the words alone", errors.New("etcdserver: no leader"), ClassOther},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Classify(c.err); got != c.want {
				t.Errorf("bare: %q, want %q", got, c.want)
			}
			if c.err != nil {
				if got := Classify(fmt.Errorf("outer: %w", fmt.Errorf("inner: %w", c.err))); got != c.want {
					t.Errorf("wrapped: %q, want %q", got, c.want)
				}
			}
		})
	}
}

func TestConfigIsRefusedWithoutTouchingTheNetwork(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no endpoint", Config{}, "no etcd endpoint is set"},
		{"no port", Config{Endpoints: []string{"http://etcd"}}, `etcd endpoint "http://etcd": write a host and a port, such as http://127.0.0.1:2379`},
		{"scheme", Config{Endpoints: []string{"ftp://etcd:1"}}, `etcd endpoint "ftp://etcd:1": the scheme ftp does not work here: write http://host:port`},
		{"no scheme", Config{Endpoints: []string{"etcd:2379"}}, `etcd endpoint "etcd:2379": not a URL with a scheme and a host: write http://host:port`},
		{"path", Config{Endpoints: []string{"http://etcd:1/v3"}}, `etcd endpoint "http://etcd:1/v3": write a host and a port, such as http://127.0.0.1:2379`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, openErr := Open(c.cfg, nil)
			_, lineErr := OpenLine(c.cfg, nil)
			for _, err := range []error{openErr, lineErr} {
				if err == nil || err.Error() != c.want {
					t.Errorf("got %v, want %s", err, c.want)
				}
			}
		})
	}
	for _, good := range []string{"http://[::1]:2379", "https://etcd:2379/"} {
		if _, err := (Config{Endpoints: []string{good}}).parse(); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

func TestPasswordFileThatCannotBeReadIsNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "password")
	_, err := (&tokens{user: "root", passwordFile: missing}).get(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), missing) || Classify(err) != ClassAuth || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v of class %q", err, Classify(err))
	}
}

// Some versions answer with the remaining life of a lease that has no end yet.
func TestALeaseWithoutAnEndIsNotOver(t *testing.T) {
	if got := seconds(math.MaxInt64); got < 24*time.Hour {
		t.Errorf("it lasts %v", got)
	}
}
