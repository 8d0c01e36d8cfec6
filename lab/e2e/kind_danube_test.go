package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/lab/harness"
)

// danubeKind is the stand-in for a Danube broker with etcd, whose registration the
// sidecar adopts.
var danubeKind = kind{
	name: "danube",
	prepare: func(s *stage, o brokerOptions) (broker, error) {
		d, err := s.NewDanube(harness.DanubeOptions{Name: o.ID, Place: o.Place, Etcd: o.Etcd, TTL: o.TTL})
		if err != nil {
			return nil, err
		}
		return danubeEtcd{danubeBroker{d, filepath.Join(s.Dir, o.ID+".pid")}, s.keys, s.etcd.Client()}, nil
	},
	stops:     "a broker that runs while its registration is deleted destroys the metadata of its topics",
	renames:   "each process registers itself under a number of its own",
	uncounted: "each broker registers itself, so no sidecar registers one where nobody was",
	boots:     "it says active of itself before anybody can know of it, and the leader gives it topics",
	moves:     "the leader gives the topics of a broker that has gone to another",
	keeps:     "an unload destroys some topics, so a drain does without",
}

// danubeBroker is what both releases have in common.
type danubeBroker struct {
	*harness.Danube
	pidFile string
}

// Launch does not wait. The broker writes no pid file, so whoever starts it does.
func (b danubeBroker) Launch() error {
	if err := b.Danube.Launch(); err != nil {
		return err
	}
	return os.WriteFile(b.pidFile, []byte(strconv.Itoa(b.PID())), 0o600)
}

func (b danubeBroker) Start(ctx context.Context) error {
	if err := b.Launch(); err != nil {
		return err
	}
	return b.AwaitUp(ctx)
}

func (b danubeBroker) Driver() []string {
	return []string{"--driver", "danube", "--broker-id", b.Name, "--broker-admin", "http://" + b.AdminAddr(), "--danube-lookup", "http://" + b.ClientAddr(),
		"--danube-metrics", "http://" + b.MetricsAddr(), "--data-dir", b.DataDir, "--broker-pid-file", b.pidFile}
}

func (b danubeBroker) Connect() (client, error) { return danubeClient{b.Danube}, nil }

func (b danubeBroker) Litter(context.Context) error {
	return os.MkdirAll(filepath.Join(b.DataDir, "wal", "default", "old"), 0o755)
}

func (b danubeBroker) Disasters() ([]string, error) {
	all, err := b.Danube.Disasters()
	var list []string
	for _, d := range all {
		list = append(list, d.String())
	}
	return list, err
}

// danubeEtcd is release 0.7.
type danubeEtcd struct {
	danubeBroker
	keys harness.Keys
	etcd *clientv3.Client
}

// Wears is its admin address.
func (b danubeEtcd) Wears() string { return b.AdminAddr() }

// Driver lets the TTL be short: all periods of the stand-in keep their proportion to it.
func (b danubeEtcd) Driver() []string {
	return append([]string{"--i-know"}, b.danubeBroker.Driver()...)
}

// Assign is what the leader does, but for the choice of the broker.
func (b danubeEtcd) Assign(ctx context.Context, name string, topics ...string) error {
	if err := harness.CreateDanubeTopics(ctx, b.etcd, topics...); err != nil {
		return err
	}
	return b.keys.Assign(ctx, b.etcd, name, topics...)
}

type danubeClient struct{ *harness.Danube }

func (c danubeClient) Publish(ctx context.Context, topic string) error {
	_, err := c.Produce(ctx, topic, []byte("e2e"))
	var refusal interface{ GRPCStatus() *status.Status }
	if errors.As(err, &refusal) && refusal.GRPCStatus().Code() == codes.FailedPrecondition {
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	return err
}

func (c danubeClient) Close() {}
