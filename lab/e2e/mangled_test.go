package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

// peak is the most memory that the process has had, in bytes.
func (s *stand) peak(sc *harness.Sidecar) int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sc.PID()))
	s.ok(err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			s.ok(err)
			return kilobytes << 10
		}
	}
	s.Fatal("no VmHWM")
	return 0
}

// What an admin API says in the middle of its broker's life is never health, and neither
// ends nor fills the sidecar. When it says what it should, all is as it was.
func TestAMangledAnswerIsNeverHealthAndIsRecoveredFrom(t *testing.T) {
	takesLong(t)
	t.Parallel()
	mangled := harness.Mangled()
	for _, kind := range []struct {
		name  string
		start func(s *stand) (admin string, flags []string)
	}{
		{"http", func(s *stand) (string, []string) {
			r, err := s.lab.StartReference(s.ctx, harness.ReferenceOptions{Name: "n1"})
			s.ok(err)
			s.ok(s.keys.Assign(s.ctx, s.etcd.Client(), "n1", "/default/a", "/default/b"))
			return r.URL(), []string{"--driver", "http"}
		}},
		{"pulsar", func(s *stand) (string, []string) {
			p := s.pulsar("p1")
			for _, topic := range topicsApart(2) {
				s.ok(p.Publish(s.ctx, topic, []byte("one")))
			}
			return p.URL(), []string{"--driver", "pulsar", "--pulsar-cluster", harness.PulsarCluster, "--pulsar-advertised", p.Advertised()}
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			admin, flags := kind.start(s)
			m, err := harness.NewMangler(s.lab, admin)
			s.ok(err)
			c, err := s.lab.StartSidecar(harness.SidecarOptions{Name: "sidecar", Endpoints: []string{s.etcd.Endpoint()},
				Flags: slices.Concat(quickFlags(), flags, []string{"--broker-admin", m.URL(), "--lease-ttl", "60s",
					"--health-timeout", "300ms", "--audit-interval", "500ms"})})
			s.ok(err)
			served := func(st harness.Status) bool { return st.Ready.OK && st.Topics.Served == 2 && st.Topics.Orphan == 0 }
			first, err := c.Await(s.ctx, bound, "ready", served)
			s.ok(err)
			probes := s.lab.Record(c)
			since := time.Now()
			for _, name := range slices.Sorted(maps.Keys(mangled)) {
				m.Answer(mangled[name])
				if name == "an error" { // 503 is a refusal, which says nothing of the broker
					_, err := c.Await(s.ctx, bound, "the refusal", func(st harness.Status) bool {
						return st.Broker.Up == "up" && st.Ready.OK && strings.Contains(st.Broker.LastError, "503")
					})
					s.ok(err)
					m.Answer(nil)
					continue
				}
				if err := c.AwaitNotReady(s.ctx, bound); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				down := time.Now()
				// What the broker's work met may be known before its health was asked for.
				st, err := c.Await(s.ctx, bound, "the error", func(st harness.Status) bool { return st.Broker.LastError != "" })
				s.ok(err)
				if strings.ContainsAny(st.Broker.LastError, "\x1b\n\x00") || len(st.Broker.LastError) > 2000 {
					t.Errorf("%s: the error is %q", name, st.Broker.LastError)
				}
				time.Sleep(500 * time.Millisecond) // it goes on for a while
				if err := probes.NeverReady(down.Add(100*time.Millisecond), time.Now()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				m.Answer(nil)
				if _, err := c.Await(s.ctx, bound, "ready again after "+name, served); err != nil {
					t.Fatal(err)
				}
			}
			if err := probes.AlwaysLive(since.Add(200*time.Millisecond), time.Now()); err != nil {
				t.Error(err)
			}
			last, err := c.Status(s.ctx)
			s.ok(err)
			if last.Epoch != first.Epoch || last.Mode != "active" || last.Incarnation != first.Incarnation {
				t.Errorf("before %s\nafter  %s", first, last)
			}
			if most := s.peak(c); most > 100<<20 {
				t.Errorf("the sidecar took %d MB", most>>20)
			}
			if n := openFiles(c); n > 60 {
				t.Errorf("the sidecar has %d files and connections open", n)
			}
		})
	}
}
