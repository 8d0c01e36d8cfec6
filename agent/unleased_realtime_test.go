package agent

import (
	"log/slog"
	"strings"
	"testing"

	"holdfast/agent/check"
)

func TestCheckWithoutAnEtcdSaysWhatThatMeansAndTriesNone(t *testing.T) {
	c := natsDefaults()
	c.Registration, c.StateDir = unleased, t.TempDir()
	c.EtcdEndpoints = []string{"http://" + deadPort}
	c.BrokerAdmin, c.NATSMonitor = "nats://"+deadPort, "http://"+deadPort
	findings := Check(t.Context(), c, slog.New(slog.DiscardHandler))
	for _, f := range findings {
		if f.What == "etcd" || f.What == "guard" || f.What == "timing" {
			t.Errorf("a finding about %s: %s %v", f.What, f.Text, f.Err)
		}
	}
	if f := find(t, findings, "lease"); f.Err != nil || !strings.Contains(f.Text, "no lease fences the broker") || !strings.Contains(f.Text, "--lease-ttl 32s") {
		t.Errorf("%s %v", f.Text, f.Err)
	}
	var b strings.Builder
	tl := check.WorstCase(c)
	if _, err := tl.WriteTo(&b); err != nil || len(tl.Unsafe) > 0 {
		t.Error(err, tl.Unsafe)
	}
	const want = `When the broker dies
        +0s  the broker dies, right after a good health check
        +4s  noticed by health checks, at the latest: not ready
       +36s  away for too long, at the latest: drained when it comes back, if its cluster says that others are active
  sooner, within 200ms, where its process or a held connection can be watched
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
