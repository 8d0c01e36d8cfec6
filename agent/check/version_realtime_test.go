package check

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

const staleText = ": its linearizable reads may be stale, so a registration that is gone may count as there, and the broker be served past its deadline: upgrade to "

func TestCheckWarnsOfEtcdMembersWhoseReadsMayBeStale(t *testing.T) {
	away := errors.New("away")
	for _, row := range []struct {
		name     string
		versions []string
		failures []error
		warn     bool
		want     string
	}{
		{"all are sound", []string{"3.7.3", "3.7.3"}, []error{nil, nil}, false, "etcd 3.7.3 at a, b"},
		{"all are old", []string{"3.4.23", "3.4.23"}, []error{nil, nil}, true, "etcd 3.4.23 at a, b" + staleText + "3.4.42 or newer"},
		{"one is old", []string{"3.6.9", "3.5.27"}, []error{nil, nil}, true, "etcd 3.5.27 at b" + staleText + "3.5.28 or newer; etcd 3.6.9 at a"},
		{"one is sound, and of a minor version that gets no more fixes", []string{"3.6.9", "3.4.42"}, []error{nil, nil}, false, "etcd 3.4.42 at b; etcd 3.6.9 at a"},
		{"one does not tell", []string{"3.6.9", ""}, []error{nil, away}, false, "etcd 3.6.9 at a; b does not tell (other)"},
		{"one tells what nobody can read", []string{"3.6.9", "unreleased"}, []error{nil, nil}, false, "etcd 3.6.9 at a; etcd unreleased at b"},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := versionFinding([]endpoint{{url: "a", version: row.versions[0], untold: row.failures[0]}, {url: "b", version: row.versions[1], untold: row.failures[1]}})
			if f.Err != nil || f.Warn != row.warn || f.Text != row.want {
				t.Errorf("%t %v\ngot  %s\nwant %s", f.Warn, f.Err, f.Text, row.want)
			}
		})
	}
}

// versioned is an etcd that tells its version and nothing else.
type versioned struct {
	pb.UnimplementedMaintenanceServer
	version string
}

func (v versioned) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	return &pb.StatusResponse{Version: v.version}, nil
}

// serve returns its URL.
func (v versioned) serve(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	services := grpc.NewServer()
	pb.RegisterMaintenanceServer(services, v)
	var serving sync.WaitGroup
	serving.Go(func() { _ = services.Serve(listener) })
	t.Cleanup(func() { services.Stop(); serving.Wait() })
	return "http://" + listener.Addr().String()
}

func TestCheckAsksEachEndpointForItsVersion(t *testing.T) {
	serve := func(version string) string { return versioned{version: version}.serve(t) }
	c := natsDefaults()
	old, sound := serve("3.4.23"), serve("3.6.9")
	c.EtcdEndpoints = []string{sound, "http://" + deadPort, old}
	f := versionFinding(askEach(t.Context(), c, "-", slog.New(slog.DiscardHandler)))
	want := "etcd 3.4.23 at " + old + staleText + "3.4.42 or newer; etcd 3.6.9 at " + sound + "; http://" + deadPort + " does not tell (unreachable)"
	if !f.Warn || f.Err != nil || f.Text != want {
		t.Errorf("got  %v %v %s\nwant %s", f.Warn, f.Err, f.Text, want)
	}
	if strings.Contains(f.Text, "\n") {
		t.Error("more than one line")
	}
}
