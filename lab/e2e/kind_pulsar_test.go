package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/lab/harness"
)

// pulsarKind is the stand-in for a Pulsar broker, beside whose own registration the
// sidecar writes another.
var pulsarKind = kind{
	name:     "pulsar",
	prepare:  preparePulsar,
	stops:    pulsarStops,
	moves:    pulsarMoves,
	asked:    pulsarAsked,
	diskless: pulsarDiskless,
}

const (
	pulsarStops    = "what it gives up it deletes in its metadata store, which a cut takes away too: --fence ready,stop"
	pulsarMoves    = "what a broker gave up is nobody's until a client looks it up, and then whoever's the cluster likes"
	pulsarAsked    = "what it owned ended with its session"
	pulsarDiskless = "its messages are in BookKeeper, so nothing of an earlier life is beside it"
)

func preparePulsar(s *stage, o brokerOptions) (broker, error) {
	// The next process waits for the end of its session, and must still come up within the TTL.
	session := cmp.Or(o.Session, o.TTL*5/8)
	p, err := s.NewPulsar(harness.PulsarOptions{Name: o.ID, Place: o.Place, Etcd: o.Etcd, SessionTimeout: session.Truncate(time.Second)})
	if err != nil {
		return nil, err
	}
	return pulsarBroker{p, filepath.Join(s.Dir, o.ID+".pid")}, nil
}

type pulsarBroker struct {
	*harness.Pulsar
	pidFile string
}

// BrokerID is the address that it advertises.
func (b pulsarBroker) BrokerID() string { return b.Advertised() }

// Launch does not wait. In life the script that starts the broker writes the pid file.
func (b pulsarBroker) Launch() error {
	if err := b.Pulsar.Launch(); err != nil {
		return err
	}
	return os.WriteFile(b.pidFile, []byte(strconv.Itoa(b.PID())), 0o600)
}

func (b pulsarBroker) Start(ctx context.Context) error {
	if err := b.Launch(); err != nil {
		return err
	}
	return b.AwaitUp(ctx)
}

func (b pulsarBroker) Driver() []string {
	return []string{"--driver", "pulsar", "--broker-admin", b.URL(), "--pulsar-cluster", harness.PulsarCluster,
		"--pulsar-status-file", b.StatusFile, "--broker-pid-file", b.pidFile, "--fence", "ready,stop", "--session-expired-policy", "drain", "--restart-grace", "0s",
		"--audit-interval", "300ms"} // nothing else tells what clients had it own
}

// Assign has clients ask this broker for the topics, which nobody owns yet.
func (b pulsarBroker) Assign(ctx context.Context, _ string, topics ...string) error {
	for _, topic := range topics {
		owner, err := b.Owner(ctx, apart(topic))
		if err != nil {
			return err
		}
		if owner != b.URL() {
			return fmt.Errorf("%s is owned by %s, not by %s", topic, owner, b.URL())
		}
	}
	return nil
}

// apart gives each topic a namespace of its own, and so a bundle.
func apart(topic string) string {
	ns, name, _ := strings.Cut(strings.TrimPrefix(topic, "/"), "/")
	return "/" + ns + "~" + name + "/only"
}

func (b pulsarBroker) Connect() (client, error) { return pulsarClient{b.Pulsar}, nil }

// Litter: see diskless.
func (b pulsarBroker) Litter(context.Context) error { return nil }

// Disasters: it loses no messages.
func (b pulsarBroker) Disasters() ([]string, error) { return nil, nil }

// pulsarClient is a producer that is connected to this broker. It looks nothing up: by
// that it would have the broker own what it gave up.
type pulsarClient struct{ *harness.Pulsar }

func (c pulsarClient) Publish(ctx context.Context, topic string) error {
	err := c.PublishHere(ctx, apart(topic), []byte("e2e"))
	if errors.Is(err, harness.ErrNotServed) {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	return err
}

func (c pulsarClient) Close() {}
