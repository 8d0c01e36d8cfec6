//go:build pulsar

package pulsar

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

func TestMain(m *testing.M) {
	flag.Parse()
	for _, p := range []harness.Program{harness.Holdfast, harness.EtcdServer} {
		if _, err := harness.Build(p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	parts = harness.PulsarParts(context.Background())
	stop := standstill.Watch()
	code := m.Run()
	stop()
	os.Exit(code)
}

// cluster is a real cluster without brokers, which ends with the test. Without Java or the
// jars the test is skipped.
func cluster(t *testing.T, o harness.ApacheOptions) *harness.Apache {
	t.Helper()
	needParts(t)
	a, err := harness.ForTest(t).StartApache(t.Context(), o)
	ok(t, err)
	return a
}

// parts is what keeps this machine from running Pulsar. It is asked once, before the time of
// the tests runs: Maven may fetch for minutes, and in vain.
var parts error

func needParts(t *testing.T) {
	t.Helper()
	if errors.Is(parts, harness.ErrNoPulsar) {
		t.Skip(parts)
	}
	ok(t, parts)
	if end, bounded := t.Deadline(); bounded && time.Until(end) < longest {
		t.Skip(fmt.Errorf("%w: the tests before it were too slow: %v left", standstill.ErrUnjudged, time.Until(end).Round(time.Second)))
	}
}

// longest is what a test takes on a busy machine.
const longest = 5 * time.Minute

func ok(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, context.DeadlineExceeded) {
		now := time.Now()
		if stood := standstill.For(now.Add(-harness.Patience), now); 4*stood > harness.Patience {
			t.Skip(fmt.Errorf("%w: stood still for %v of the last minute: %w", standstill.ErrUnjudged, stood.Round(time.Millisecond), err))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// soon bounds what should come within seconds.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// namespaces that the tests use. Nobody makes them by looking a topic up.
var namespaces = []string{"public/default", "my-tenant/my-ns", "a.b/c.d", "a:b/c=d"}

// makeNamespaces gives each its PulsarBundles.
func makeNamespaces(t *testing.T, b *harness.ApacheBroker) {
	t.Helper()
	ok(t, MakeNamespaces(soon(t), b, namespaces...))
}

// leadBundle has the broker own the topic's bundle.
func leadBundle(t *testing.T, to *harness.ApacheBroker, topic string) {
	t.Helper()
	ok(t, LeadBundle(t.Context(), to, topic))
}
