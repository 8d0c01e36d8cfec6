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

func needParts(t *testing.T) {
	t.Helper()
	err := harness.PulsarParts(t.Context())
	if errors.Is(err, harness.ErrNoPulsar) {
		t.Skip(err)
	}
	ok(t, err)
}

func ok(t *testing.T, err error) {
	t.Helper()
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
