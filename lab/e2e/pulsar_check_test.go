package e2e

import (
	"strings"
	"testing"

	"holdfast/lab/harness"
)

func TestACheckOfAPulsarBrokerSaysWhatItIsAndWhatItCanDo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	p := s.pulsar("p1")
	check := func(more ...string) harness.Result {
		return s.command(append([]string{"check", "--driver", "pulsar", "--broker-admin", p.URL(), "--pulsar-cluster", harness.PulsarCluster,
			"--pulsar-status-file", p.StatusFile, "--etcd-endpoints", s.etcd.Endpoint(), "--state-dir", s.TempDir(), "--log-level", "error"}, more...)...)
	}
	const can = "pulsar 4.0.7; can: steer; has: places, fences-itself"
	own := check()
	if own.Exit != 0 || own.Stderr != "" || !strings.Contains(own.Stdout, can) || !strings.Contains(own.Stdout, p.Advertised()+" is not registered") {
		t.Errorf("own: %+v", own)
	}
	for name, args := range map[string][]string{
		"adopted":    {"--registration", "adopt"},
		"rendezvous": {"--assignment", "rendezvous"},
		"two steps":  {"--fence", "quiesce"},
	} {
		if res := check(args...); res.Exit != 2 || strings.Count(res.Stderr, "\n") != 1 || !strings.Contains(res.Stderr, args[0]) {
			t.Errorf("%s: %+v", name, res)
		}
	}
	s.nothingOfOurs()
}

// nothingOfOurs checks that Holdfast has written nothing.
func (s *stand) nothingOfOurs() {
	s.Helper()
	s.caughtUp()
	for _, ch := range s.history.Changes() {
		if strings.HasPrefix(ch.Key, "/cluster/") {
			s.Errorf("written to etcd: %v", ch)
		}
	}
}
