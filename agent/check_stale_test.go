package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"holdfast/cluster"
)

// telling is an etcd whose reads show nothing, and that calls asked when it is asked for
// its version.
type telling struct {
	version string
	asked   func()
}

func (e telling) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if reply, ok := reply.(*pb.StatusResponse); ok {
		reply.Version = e.version
		e.asked()
	}
	return nil
}

func (telling) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.ErrUnsupported
}

func TestRunWarnsOnceOfAnEtcdWhoseReadsMayBeStale(t *testing.T) {
	for _, row := range []struct {
		version   string
		endpoints []string
		want      string
	}{
		{"3.4.23", []string{"http://a:1"}, "etcd 3.4.23 at http://a:1: its linearizable reads may be stale, so a registration that is gone may count as there, and the broker be served past its deadline: upgrade to 3.4.42 or newer"},
		{"3.5.27", []string{"http://a:1", "http://b:1"}, "etcd 3.5.27 at one of http://a:1, http://b:1: its linearizable reads may be stale, so a registration that is gone may count as there, and the broker be served past its deadline: upgrade to 3.5.28 or newer"},
		{"3.6.9", []string{"http://a:1"}, ""},
		{"3.4.42", []string{"http://a:1"}, ""},
	} {
		var log strings.Builder
		a := built(t)
		a.cfg.EtcdEndpoints = row.endpoints
		a.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		a.main = cluster.Over(a.cfg.Cluster(), telling{row.version, cancel}, nil)
		if err := a.refuseWrongCredentials(ctx); err != nil {
			t.Error(err)
		}
		if row.want == "" && log.Len() > 0 || strings.Count(log.String(), "level=WARN") != min(len(row.want), 1) || !strings.Contains(log.String(), row.want) {
			t.Errorf("etcd %s: logged %q, want %q", row.version, log.String(), row.want)
		}
	}
}
