package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
)

// unleasedTTL is the TTL of brokers and sidecars that have no etcd.
const unleasedTTL = 4 * time.Second

// unleased is a Danube broker with Raft and a sidecar without an etcd.
type unleased struct {
	t       *testing.T
	broker  *harness.Danube
	sidecar *harness.Sidecar
}

func newUnleased(t *testing.T, l *harness.Lab, name, metadata string) *unleased {
	t.Helper()
	d, err := l.StartDanube(t.Context(), harness.DanubeOptions{Name: name, Metadata: metadata, TTL: unleasedTTL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.NewSidecar(harness.SidecarOptions{Name: name + "-sidecar", Flags: []string{"--driver", "danube", "--registration", "none",
		"--broker-admin", "http://" + d.AdminAddr(), "--danube-lookup", "http://" + d.ClientAddr(), "--danube-metrics", "http://" + d.MetricsAddr(),
		"--lease-ttl", unleasedTTL.String(), "--health-interval", "200ms", "--health-timeout", "500ms", "--health-fall", "2", "--health-rise", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	return &unleased{t, d, s}
}

// is waits until the sidecar and the broker's own cluster say the mode.
func (u *unleased) is(mode, reason string) {
	u.t.Helper()
	_, err := u.sidecar.Await(u.t.Context(), bound, mode+" ("+reason+")", func(st harness.Status) bool {
		return st.Mode == mode && st.Reason == reason && st.Broker.Up == "up"
	})
	if err != nil {
		u.t.Fatal(err)
	}
	id, err := u.broker.ID(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	err = harness.Await(u.t.Context(), bound, "the broker to be "+mode, func(ctx context.Context) (bool, string) {
		list, err := u.broker.Brokers.ListBrokers(ctx, &danubepb.Empty{})
		if err != nil {
			return false, err.Error()
		}
		for _, b := range list.GetBrokers() {
			if b.GetBrokerId() == id {
				return b.GetBrokerStatus() == mode, b.String()
			}
		}
		return false, list.String()
	})
	if err != nil {
		u.t.Fatal(err)
	}
	code, body, err := u.sidecar.Probe(u.t.Context(), "/ready?full=1")
	if mode == "active" {
		if err := u.sidecar.AwaitReady(u.t.Context(), bound); err != nil {
			u.t.Fatal(err)
		}
	} else if err != nil || code != http.StatusServiceUnavailable {
		u.t.Errorf("/ready of a broker that is %s: %d %s %v", mode, code, body, err)
	}
}

// away kills the broker and starts it again that long after.
func (u *unleased) away(d time.Duration) {
	u.t.Helper()
	if err := u.broker.Kill(); err != nil {
		u.t.Fatal(err)
	}
	time.Sleep(d) // the claim is about this time
	if err := u.broker.Start(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
}

func TestADanubeBrokerWithRaftIsWatchedAndSteeredWithoutAnEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	l := harness.ForTest(t)
	m, err := l.StartDanubeMetadata()
	if err != nil {
		t.Fatal(err)
	}
	u := newUnleased(t, l, "d1", m.Addr)
	other, err := l.StartDanube(t.Context(), harness.DanubeOptions{Name: "d2", Metadata: m.Addr, TTL: unleasedTTL})
	if err != nil {
		t.Fatal(err)
	}

	bin, err := harness.Build(harness.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	check, err := harness.RunHoldfast(t.Context(), bin, append([]string{"check"}, u.sidecar.Args()[1:]...)...)
	if err != nil || check.Exit != 0 || !strings.Contains(check.Stdout, "no lease fences the broker") || strings.Contains(check.Stdout, "etcd-endpoints") {
		t.Errorf("check: %v %+v", err, check)
	}

	if err := u.sidecar.Start(); err != nil {
		t.Fatal(err)
	}
	u.is("active", "boot")
	u.away(unleasedTTL / 4)
	u.is("active", "fast_restart")

	// The sidecar is away for longer than the TTL, the broker runs on.
	if err := u.sidecar.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * unleasedTTL)
	if err := u.sidecar.Start(); err != nil {
		t.Fatal(err)
	}
	u.is("active", "fast_restart")

	// The broker comes back active by itself; its sidecar drains it.
	u.away(2 * unleasedTTL)
	u.is("drained", "stale_restart")
	if err := u.sidecar.Activate(t.Context(), "looked at it"); err != nil {
		t.Fatal(err)
	}
	u.is("active", "looked at it")

	// Nobody else is there to take over.
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	u.away(2 * unleasedTTL)
	u.is("active", "full_cluster_restart")
}
