package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
)

// NATSOptions says how a NATS server with JetStream is started.
type NATSOptions struct {
	Name   string // its server_name, and the name of the process; required
	Place  Place
	Binary string // default: built by the lab
	Extra  string // added to the configuration file
	HTTPS  bool   // of the monitoring port, with the certificate that Extra names
}

// NATS is one NATS server. Its name, store and ports survive its lives.
// It listens on every address of its place.
type NATS struct {
	*Process
	Port, MonitorPort int
	StoreDir          string // JetStream's; the streams are in jetstream/ below
	PIDFile           string
	http              *http.Client
}

// NewNATS prepares a server without starting it.
func (l *Lab) NewNATS(o NATSOptions) (*NATS, error) {
	if o.Binary == "" {
		bin, err := Build(NATSServer)
		if err != nil {
			return nil, err
		}
		o.Binary = bin
	}
	ports, err := l.ports(2)
	if err != nil {
		return nil, fmt.Errorf("prepare NATS server %s: %w", o.Name, err)
	}
	dir := filepath.Join(l.Dir, o.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare NATS server %s: %w", o.Name, err)
	}
	n := &NATS{
		Port: ports[0], MonitorPort: ports[1],
		StoreDir: filepath.Join(dir, "store"),
		PIDFile:  filepath.Join(dir, "nats.pid"),
		http:     httpClient(o.Place.DialContext, time.Second),
	}
	conf := filepath.Join(dir, "nats.conf")
	scheme := "http"
	if o.HTTPS {
		scheme = "https"
	}
	text := fmt.Sprintf("server_name: %q\nlisten: \"0.0.0.0:%d\"\n%s: \"0.0.0.0:%d\"\npid_file: %q\n"+
		"jetstream { store_dir: %q, max_memory_store: 64MB, max_file_store: 8GB }\n%s\n",
		o.Name, n.Port, scheme, n.MonitorPort, n.PIDFile, n.StoreDir, o.Extra)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("prepare NATS server %s: %w", o.Name, err)
	}
	n.Process = l.newProcess(o.Name, o.Place, o.Binary, []string{"-c", conf})
	l.own(n.Process)
	l.onClose(func() error { n.http.CloseIdleConnections(); return nil })
	return n, nil
}

// StartNATS prepares and starts a server and waits until JetStream is up.
func (l *Lab) StartNATS(ctx context.Context, o NATSOptions) (*NATS, error) {
	n, err := l.NewNATS(o)
	if err != nil {
		return nil, err
	}
	return n, n.Start(ctx)
}

// Start starts the server, again if need be, and waits until JetStream is up.
func (n *NATS) Start(ctx context.Context) error {
	if err := n.Launch(); err != nil {
		return err
	}
	return n.AwaitUp(ctx)
}

// Launch starts the server and does not wait.
func (n *NATS) Launch() error { return n.start() }

// AwaitUp waits until the server says that it and JetStream are healthy.
func (n *NATS) AwaitUp(ctx context.Context) error {
	url := n.MonitorURL() + "/healthz?js-enabled-only=true"
	return awaitProcess(ctx, n.Process, Patience, n.Name+" to be healthy", func(ctx context.Context) (bool, string) {
		code, body, err := httpGet(ctx, n.http, url)
		if err != nil {
			return false, err.Error()
		}
		return code == http.StatusOK, body
	})
}

// ConfigLoaded is when it last read its configuration.
func (n *NATS) ConfigLoaded(ctx context.Context) (time.Time, error) {
	var varz struct {
		Loaded time.Time `json:"config_load_time"`
	}
	_, body, err := httpGet(ctx, n.http, n.MonitorURL()+"/varz")
	if err == nil {
		err = json.Unmarshal([]byte(body), &varz)
	}
	return varz.Loaded, err
}

// URL is the client URL inside the server's place.
func (n *NATS) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.Port) }

// MonitorURL is the monitoring URL inside the server's place.
func (n *NATS) MonitorURL() string { return fmt.Sprintf("http://127.0.0.1:%d", n.MonitorPort) }

// Connect connects a client, from inside the server's place. It tries for ever to
// reconnect; the caller closes it.
func (n *NATS) Connect(opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{
		nats.SetCustomDialer(n.Place),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(0, 0),
		nats.RetryOnFailedConnect(true),
	}, opts...)
	c, err := nats.Connect(n.URL(), opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", n.Name, err)
	}
	return c, nil
}

// Publish publishes one message to the topic and waits for JetStream's word: the
// sequence at which it is stored. nats.ErrNoResponders: the topic is not served.
func Publish(ctx context.Context, c *nats.Conn, topic string, data []byte) (seq uint64, err error) {
	msg, err := c.RequestWithContext(ctx, Subject(topic), data)
	if err != nil {
		return 0, fmt.Errorf("publish to %s: %w", topic, err)
	}
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return 0, fmt.Errorf("publish to %s: read answer %q: %w", topic, msg.Data, err)
	}
	if ack.Error != nil {
		return 0, fmt.Errorf("publish to %s: refused: %s", topic, ack.Error.Description)
	}
	return ack.Seq, nil
}
