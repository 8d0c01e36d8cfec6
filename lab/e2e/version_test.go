package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

func TestACheckWarnsOfAnEtcdWhoseReadsMayBeStale(t *testing.T) {
	t.Parallel()
	t.Run("Debian's", func(t *testing.T) {
		binary, err := exec.LookPath("etcd")
		if err != nil {
			t.Skip("no etcd on PATH: Debian has 3.4 in etcd-server")
		}
		s := newStandOn(t, harness.EtcdOptions{Binary: binary})
		res := s.command(append([]string{"check"}, s.settings(s.broker("n1"))...)...)
		want := "version   warning etcd 3.4.23 at " + s.etcd.Endpoint() + ": its linearizable reads may be stale"
		if res.Exit != 0 || !strings.Contains(res.Stdout, want) || !strings.Contains(res.Stdout, "upgrade to 3.4.42 or newer\n") {
			t.Errorf("%+v", res)
		}
	})
	t.Run("the lab's", func(t *testing.T) {
		s := newStand(t)
		res := s.command(append([]string{"check"}, s.settings(s.broker("n1"))...)...)
		if res.Exit != 0 || !strings.Contains(res.Stdout, "version   ok      etcd 3.7.3 at "+s.etcd.Endpoint()+"\n") {
			t.Errorf("%+v", res)
		}
	})
}
