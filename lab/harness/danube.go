package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/standin/danube"
)

// DanubeOptions says how the stand-in for a Danube broker is started.
type DanubeOptions struct {
	Name  string // of the process and of its directory; required
	Place Place
	TTL   time.Duration // of the broker's own registration; default 32 s. All its periods keep their proportion

	Etcd string // endpoint of the etcd with its metadata, as seen from the place
	// Raft is for a later release. Brokers have their metadata among themselves: give them an etcd
	// that no sidecar is told of.
	Raft bool

	Objects string // directory that brokers share, for sealed logs
	// Assign is how long the leader takes to assign a topic; default 200 ms with release
	// 0.7, where a leader that is quicker than the broker that unloads makes it destroy the
	// topic; negative: nothing.
	Assign time.Duration
	Args   []string // added; see danubed --help
}

// Danube is the stand-in for a Danube broker as a process. Its name, data and ports
// survive its lives, its id does so with Raft only. It listens on the loopback of its
// place.
type Danube struct {
	*Process
	danube.Client
	ClientPort, AdminPort, MetricsPort int
	DataDir                            string
	Brokers                            danubepb.BrokerAdminClient
	Topics                             danubepb.TopicAdminClient
}

// NewDanube prepares a broker without starting it.
func (l *Lab) NewDanube(o DanubeOptions) (*Danube, error) {
	bin, err := Build(DanubeServer)
	if err != nil {
		return nil, err
	}
	if o.TTL == 0 {
		o.TTL = danube.RealTTL
	}
	if o.Assign == 0 && !o.Raft {
		o.Assign = 200 * time.Millisecond
	}
	ports, err := l.ports(3)
	if err != nil {
		return nil, fmt.Errorf("prepare Danube broker %s: %w", o.Name, err)
	}
	d := &Danube{ClientPort: ports[0], AdminPort: ports[1], MetricsPort: ports[2], DataDir: filepath.Join(l.Dir, o.Name)}
	if err := os.MkdirAll(d.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare Danube broker %s: %w", o.Name, err)
	}
	args := []string{
		"--data-dir", d.DataDir, "--client", d.ClientAddr(), "--admin", d.AdminAddr(), "--metrics", d.MetricsAddr(),
		"--ttl", o.TTL.String(), "--assign-delay", max(o.Assign, 0).String(), "--objects", o.Objects,
		"--etcd", o.Etcd, "--raft=" + strconv.FormatBool(o.Raft),
	}
	d.Process = l.newProcess(o.Name, o.Place, bin, append(args, o.Args...))
	l.own(d.Process)
	client, err := d.dial(l, d.ClientAddr())
	if err != nil {
		return nil, err
	}
	admin, err := d.dial(l, d.AdminAddr())
	if err != nil {
		return nil, err
	}
	d.Client = danube.NewClient(client)
	d.Brokers, d.Topics = danubepb.NewBrokerAdminClient(admin), danubepb.NewTopicAdminClient(admin)
	return d, nil
}

// dial makes a connection from inside the place that is quick to find a broker that came
// back. It ends with the lab.
func (d *Danube) dial(l *Lab, addr string) (*grpc.ClientConn, error) {
	c, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return d.Place.DialContext(ctx, "tcp", addr) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.Name, err)
	}
	l.onClose(c.Close)
	return c, nil
}

// StartDanube prepares and starts a broker and waits until it is up.
func (l *Lab) StartDanube(ctx context.Context, o DanubeOptions) (*Danube, error) {
	d, err := l.NewDanube(o)
	if err != nil {
		return nil, err
	}
	return d, d.Start(ctx)
}

// Start starts the broker, again if need be, and waits until it is up.
func (d *Danube) Start(ctx context.Context) error {
	if err := d.Launch(); err != nil {
		return err
	}
	return d.AwaitUp(ctx)
}

// Launch starts the broker and does not wait.
func (d *Danube) Launch() error { return d.start() }

// AwaitUp waits until the broker answers on both of its ports.
func (d *Danube) AwaitUp(ctx context.Context) error {
	return awaitProcess(ctx, d.Process, Patience, d.Name+" to be up", func(ctx context.Context) (bool, string) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := d.Brokers.ListBrokers(ctx, &danubepb.Empty{}); err != nil {
			return false, err.Error()
		}
		if _, err := d.Status(ctx); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Command is the program and its arguments, for a sidecar that supervises it.
func (d *Danube) Command() []string { return append([]string{d.path}, d.args...) }

// ID is the id of the present life.
func (d *Danube) ID(ctx context.Context) (string, error) {
	st, err := d.Status(ctx)
	return st.ID, err
}

// ClientAddr is where clients connect, inside the broker's place.
func (d *Danube) ClientAddr() string { return address(d.ClientPort) }

// AdminAddr is where the admin API is, inside the broker's place.
func (d *Danube) AdminAddr() string { return address(d.AdminPort) }

// MetricsAddr is where Prometheus asks, inside the broker's place.
func (d *Danube) MetricsAddr() string { return address(d.MetricsPort) }

// Disasters are those of all its lives. A scenario that met one has failed.
func (d *Danube) Disasters() ([]danube.Disaster, error) { return danube.Disasters(d.DataDir) }

// CreateDanubeTopics writes the metadata that a broker of release 0.7 needs to load the
// topics. Nobody is assigned by it.
func CreateDanubeTopics(ctx context.Context, c *clientv3.Client, topics ...string) error {
	for _, topic := range topics {
		if _, err := c.Put(ctx, "/topics"+topic+"/delivery", `"Reliable"`); err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	return nil
}
