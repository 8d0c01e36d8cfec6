//go:build pulsar

package pulsar

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"holdfast/lab/harness"
)

// Topics are n topics of public/default that share its bundles evenly, neighbours in bundles of
// their own.
func Topics(n int) (topics []string) {
	in := map[string]int{}
	for i := 0; len(topics) < n; i++ {
		topic := fmt.Sprintf("/public~default/topic-%d", i)
		if b := harness.PulsarBundle(topic); in[b] == len(topics)/harness.PulsarBundles {
			in[b]++
			topics = append(topics, topic)
		}
	}
	return topics
}

// MakeNamespaces gives each its PulsarBundles. The cluster's own public/default has 16, and is
// made anew.
func MakeNamespaces(ctx context.Context, b *harness.ApacheBroker, namespaces ...string) error {
	if _, err := b.Do(ctx, http.MethodDelete, "/admin/v2/namespaces/public/default", ""); err != nil {
		return err
	}
	for _, namespace := range namespaces {
		tenant, _, _ := strings.Cut(namespace, "/")
		for _, put := range [][2]string{
			{"/admin/v2/tenants/" + tenant, `{"allowedClusters":["` + harness.PulsarCluster + `"]}`},
			{"/admin/v2/namespaces/" + namespace, fmt.Sprintf(`{"bundles":{"numBundles":%d}}`, harness.PulsarBundles)},
		} {
			a, err := b.Admin(ctx, http.MethodPut, put[0], put[1])
			if err != nil {
				return err
			}
			if a.Status != http.StatusNoContent && a.Status != http.StatusConflict { // it is there
				return fmt.Errorf("put %s: %+v", put[0], a)
			}
		}
	}
	return nil
}

// LeadBundle has the broker own the topic's bundle.
func LeadBundle(ctx context.Context, to *harness.ApacheBroker, topic string) error {
	return harness.Await(ctx, harness.Patience, topic+" to be "+to.Name+"'s", func(ctx context.Context) (bool, string) {
		owner, err := to.Owner(ctx, topic)
		if err == nil && owner != to.URL() {
			err = Unload(ctx, to, topic, to.Advertised())
		}
		return err == nil && owner == to.URL(), fmt.Sprint(owner, " ", err)
	})
}

// Unload has the topic's bundle unloaded, by a call to any broker; the cluster chooses who has it
// next, unless there is a broker named.
func Unload(ctx context.Context, by *harness.ApacheBroker, topic, destination string) error {
	_, namespace := harness.PulsarTopic(topic)
	path := "/admin/v2/namespaces/" + namespace + "/" + harness.PulsarBundle(topic) + "/unload"
	if destination != "" {
		path += "?destinationBroker=" + destination
	}
	_, err := by.Do(ctx, http.MethodPut, path, "")
	return err
}

// NewSidecar prepares one beside the broker, without starting it; flags are added to those that
// say where the broker is.
func NewSidecar(l *harness.Lab, etcd string, b *harness.ApacheBroker, flags ...string) (*harness.Sidecar, error) {
	return l.NewSidecar(harness.SidecarOptions{
		Name: b.Name + "-sidecar", Endpoints: []string{etcd},
		Flags: append([]string{"--driver", "pulsar", "--broker-admin", b.URL(), "--pulsar-cluster", harness.PulsarCluster,
			"--pulsar-status-file", b.StatusFile, "--broker-pid-file", b.PIDFile}, flags...),
	})
}
