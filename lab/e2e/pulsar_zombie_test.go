package e2e

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"holdfast/lab/harness"
)

// asked is how many requests etcd was sent so far, by method.
func (s *stand) asked() map[string]float64 {
	s.Helper()
	text := s.etcdMetrics()
	asked := map[string]float64{}
	for method, of := range map[string]string{
		"Txn":            `grpc_service="etcdserverpb.KV",grpc_type="unary"`,
		"Range":          `grpc_service="etcdserverpb.KV",grpc_type="unary"`,
		"LeaseGrant":     `grpc_service="etcdserverpb.Lease",grpc_type="unary"`,
		"LeaseKeepAlive": `grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"`,
		"Watch":          `grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"`,
	} {
		n, ok := seriesValue(text, fmt.Sprintf("grpc_server_started_total{grpc_method=%q,%s}", method, of))
		if !ok {
			s.Fatalf("etcd does not tell how often %s was asked for", method)
		}
		asked[method] = n
	}
	return asked
}

// The broker's session is gone, and it does not register again: it cannot reach etcd. What it
// had registered is not known to a sidecar that starts now, which has nothing to adopt.
func TestASidecarThatStartsBesideAZombieDoesNotStormEtcd(t *testing.T) {
	takesLong(t)
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	c := s.besidePulsar(p, "--registration", "adopt")
	before := s.key(pulsarRegistration(p))
	s.ok(c.Kill())
	s.ok(p.Fault(s.ctx, "cut-etcd", "on"))
	_, err := s.etcd.Client().Revoke(s.ctx, clientv3.LeaseID(before.Lease))
	s.ok(err)
	s.ok(c.Start())
	_, err = c.Await(s.ctx, bound, "a word about the registration", func(st harness.Status) bool {
		return st.Attachment == "attached" || st.Lease.LastError != ""
	})
	s.ok(err)
	const span, most = 5 * time.Second, 75
	first := s.asked()
	time.Sleep(span) // what is shown is that little happens
	for method, n := range s.asked() {
		if n -= first[method]; n > most {
			t.Errorf("%v %s in %v, want at most %d", n, method, span, most)
		}
	}
	// It goes on by itself when the broker is back.
	s.ok(p.Fault(s.ctx, "cut-etcd", "off"))
	_, err = c.Await(s.ctx, bound, "attached", func(st harness.Status) bool { return st.Attachment == "attached" })
	s.ok(err)
}
