package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// version is what the broker states, and whose answers these are.
const version = "4.0.7"

// Config is the part of broker.conf that the stand-in knows, and the lab's own.
type Config struct {
	Cluster        string        // clusterName
	Listen         string        // host:port of the web service
	Advertised     string        // host:port that the broker calls itself; empty: Listen
	Etcd           []string      // metadataStoreUrl
	SessionTimeout time.Duration // metadataStoreSessionTimeoutMillis; 0: 30 s
	StatusFile     string        // statusFilePath; empty: status.html is not there
	Bundles        int           // defaultNumberOfNamespaceBundles; 0: 4
	Data           string        // directory with the messages, shared by all brokers of the cluster
}

// Broker is one broker. Make it with New and let it Run once.
type Broker struct {
	cfg     Config
	log     *slog.Logger
	session *session
	started time.Time // as the metrics tell it

	mu    sync.Mutex
	ready bool
	owned map[string]*owned // by bundle

	taking sync.Mutex // one bundle is looked up at a time
	asked  sync.WaitGroup
}

// owned is a bundle in the broker's cache.
type owned struct {
	bundle Bundle
	active bool
}

// New checks the settings. Nothing is touched before Run.
func New(cfg Config, log *slog.Logger) (*Broker, error) {
	if cfg.Advertised == "" {
		cfg.Advertised = cfg.Listen
	}
	if cfg.SessionTimeout == 0 {
		cfg.SessionTimeout = 30 * time.Second
	}
	if cfg.Bundles == 0 {
		cfg.Bundles = 4
	}
	switch {
	case !legal.MatchString(cfg.Cluster):
		return nil, fmt.Errorf("cluster %q: want a name", cfg.Cluster)
	case len(cfg.Etcd) == 0, cfg.Data == "", cfg.Listen == "":
		return nil, errors.New("listen address, etcd and data directory are required")
	case cfg.Bundles < 1 || cfg.Bundles > 1<<16:
		return nil, fmt.Errorf("%d bundles: want 1 to 65536", cfg.Bundles)
	}
	return &Broker{cfg: cfg, log: log, owned: map[string]*owned{}}, nil
}

// etcdConfig has the client find etcd again within about 3 s of the end of a cut. With the
// defaults a dropped packet is sent again after twice the time each time: a session could
// end 5 s after the heal though a third of it was left.
func etcdConfig(endpoints []string, session time.Duration) clientv3.Config {
	return clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: session / 6,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		})},
	}
}

// Run serves until ctx ends, and then ends its session, as a broker does that is stopped in good order.
func (b *Broker) Run(ctx context.Context) error {
	b.started = time.Now()
	etcd, err := clientv3.New(etcdConfig(b.cfg.Etcd, b.cfg.SessionTimeout))
	if err != nil {
		return fmt.Errorf("open etcd: %w", err)
	}
	defer etcd.Close()
	b.session = &session{etcd: etcd, timeout: b.cfg.SessionTimeout, log: b.log}
	listener, err := net.Listen("tcp", b.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	web := &http.Server{Handler: b.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 30 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	b.asked.Go(func() { _ = web.Serve(listener) })
	defer b.asked.Wait()
	defer web.Close()

	if err := b.open(ctx); err != nil {
		return nil // ended before it could begin
	}
	var parts sync.WaitGroup
	parts.Go(func() { b.session.run(ctx) })
	defer parts.Wait()
	if err := b.register(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	_ = web.Close()
	ending, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if _, err := b.session.etcd.Revoke(ending, b.session.lease); err != nil {
		b.log.Warn("session not closed", "err", err)
	}
	return nil
}

// open opens the session, as soon as etcd answers.
func (b *Broker) open(ctx context.Context) error {
	for {
		err := b.session.open(ctx)
		if err == nil {
			return nil
		}
		if err := b.pause(ctx, err); err != nil {
			return err
		}
	}
}

// register takes the broker's own keys. Those of an earlier life are waited for: they are
// another session's, with another value.
func (b *Broker) register(ctx context.Context) error {
	for {
		err := b.session.acquire(ctx, b.registrationKey(), b.registration(time.Now()))
		if err == nil {
			break
		}
		if err := b.pause(ctx, err); err != nil {
			return err
		}
	}
	for _, ns := range []string{"pulsar/" + b.cfg.Cluster + "/" + b.cfg.Advertised, "pulsar/" + b.cfg.Advertised} {
		if err := b.take(ctx, Bundle{ns, 0, full}); err != nil {
			return fmt.Errorf("own the heartbeat namespace %s: %w", ns, err)
		}
	}
	b.mu.Lock()
	b.ready = true
	b.mu.Unlock()
	b.log.Info("broker is ready", "advertised", b.cfg.Advertised)
	return nil
}

func (b *Broker) pause(ctx context.Context, why error) error {
	b.log.Debug("not registered yet, trying again", "err", why)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

func (b *Broker) registrationKey() string { return "/loadbalance/brokers/" + b.cfg.Advertised }

// httpURL is how others reach the web service.
func (b *Broker) httpURL() string { return "http://" + b.cfg.Advertised }

func (b *Broker) nativeURL() string { return "pulsar://" + b.cfg.Advertised }

func (b *Broker) registration(at time.Time) []byte {
	value, _ := json.Marshal(map[string]any{
		"webServiceUrl": b.httpURL(), "pulsarServiceUrl": b.nativeURL(), "persistentTopicsEnabled": true,
		"brokerVersionString": version, "lastUpdate": at.UnixMilli(),
	})
	return value
}

// ownerValue is the value of every bundle that is owned here.
func (b *Broker) ownerValue() []byte {
	value, _ := json.Marshal(map[string]any{
		"nativeUrl": b.nativeURL(), "httpUrl": b.httpURL(), "disabled": false, "advertisedListeners": map[string]any{},
	})
	return value
}

func (b *Broker) cache() []*owned {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*owned, 0, len(b.owned))
	for _, o := range b.owned {
		list = append(list, o)
	}
	return list
}
