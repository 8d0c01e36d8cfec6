package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// PulsarVersion is that of lab/pulsar/pom.xml.
const PulsarVersion = "4.0.7"

// The two load managers of Pulsar 4.0. Modular is the default.
const (
	ModularLoadManager    = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
	ExtensibleLoadManager = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
)

// bootBound is how long a process of Java may take until it answers: 5 to 13 s on two cores.
const bootBound = 3 * time.Minute

// ApacheOptions says how a real Pulsar cluster is started. The zero value is fine.
type ApacheOptions struct {
	Etcd        *Etcd             // its metadata store; default: one of its own
	LoadManager string            // class name; default ModularLoadManager
	Broker      map[string]string // added to each broker.conf, and wins
	// EtcdHost is where the broker of that number, from 1, finds etcd; default 127.0.0.1 for all.
	EtcdHost func(broker int) string
}

// Apache is a real Pulsar cluster: etcd, one bookie, and the brokers that were added. Each
// process of Java takes some 300 MB.
type Apache struct {
	Etcd   *Etcd
	Bookie *Process

	lab       *Lab
	parts     pulsarParts
	options   ApacheOptions
	log4j     string
	brokers   int
	bookieKey string // of the bookie's registration in etcd
}

const log4jConfig = `<Configuration status="WARN"><Appenders><Console name="c" target="SYSTEM_OUT"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5level %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="info"><AppenderRef ref="c"/></Root></Loggers></Configuration>`

// StartApache starts etcd and a bookie of a new cluster, whose name is PulsarCluster. Its
// error says why where Java or the jars are missing; see PulsarParts.
func (l *Lab) StartApache(ctx context.Context, o ApacheOptions) (*Apache, error) {
	parts, err := findPulsarParts(ctx)
	if err != nil {
		return nil, err
	}
	if o.LoadManager == "" {
		o.LoadManager = ModularLoadManager
	}
	if o.EtcdHost == nil {
		o.EtcdHost = func(int) string { return "127.0.0.1" }
	}
	a := &Apache{Etcd: o.Etcd, lab: l, parts: parts, options: o, log4j: filepath.Join(l.Dir, "log4j2.xml")}
	if err := os.WriteFile(a.log4j, []byte(log4jConfig), 0o644); err != nil {
		return nil, fmt.Errorf("start Pulsar: %w", err)
	}
	if a.Etcd == nil {
		if a.Etcd, err = l.StartEtcd(ctx, EtcdOptions{}); err != nil {
			return nil, err
		}
	}
	store := "etcd:" + a.Etcd.Endpoint()
	setup := a.process("pulsar-setup", "org.apache.pulsar.PulsarClusterMetadataSetup", "--cluster", PulsarCluster,
		"--metadata-store", store, "--configuration-metadata-store", store,
		"--web-service-url", "http://127.0.0.1:8080", "--broker-service-url", "pulsar://127.0.0.1:6650")
	if err := setup.start(); err != nil {
		return nil, err
	}
	if err := awaitEnd(ctx, setup); err != nil {
		return nil, err
	}
	return a, a.startBookie(ctx)
}

func (a *Apache) process(name, class string, args ...string) *Process {
	path, all := a.parts.command(a.log4j, class, args...)
	p := a.lab.newProcess(name, Place{}, path, all)
	a.lab.own(p)
	return p
}

// awaitEnd wants a process to end by itself, well.
func awaitEnd(ctx context.Context, p *Process) error {
	ctx, cancel := context.WithTimeout(ctx, bootBound)
	defer cancel()
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return fmt.Errorf("await the end of %s: %w", p.Name, ctx.Err())
	}
	if code, err := p.ExitCode(); err != nil || code != 0 {
		return p.diedError()
	}
	return nil
}

func (a *Apache) startBookie(ctx context.Context) error {
	port, err := a.lab.Port()
	if err != nil {
		return fmt.Errorf("start bookie: %w", err)
	}
	dir := filepath.Join(a.lab.Dir, "bookie")
	conf := filepath.Join(a.lab.Dir, "bookie.conf")
	if err := writeProperties(conf, map[string]string{
		"bookiePort": fmt.Sprint(port), "advertisedAddress": "127.0.0.1", "listeningInterface": "lo", "allowLoopback": "true",
		"journalDirectory": dir + "/journal", "ledgerDirectories": dir + "/ledgers", "indexDirectories": dir + "/index",
		"metadataServiceUri":                "metadata-store:etcd:" + a.Etcd.Endpoint(),
		"ledgerStorageClass":                "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
		"dbStorage_writeCacheMaxSizeMb":     "32",
		"dbStorage_readAheadCacheMaxSizeMb": "32",
		"dbStorage_rocksDB_blockCacheSize":  "16777216",
		"httpServerEnabled":                 "false",
		"diskUsageThreshold":                "0.99",
		"journalSyncData":                   "false", // else the tests measure how busy the disk is
	}); err != nil {
		return fmt.Errorf("start bookie: %w", err)
	}
	a.Bookie = a.process("bookie", "org.apache.bookkeeper.server.Main", "--conf", conf)
	a.bookieKey = fmt.Sprintf("/ledgers/available/127.0.0.1:%d", port)
	return a.launchBookie(ctx)
}

func (a *Apache) launchBookie(ctx context.Context) error {
	if err := a.Bookie.start(); err != nil {
		return err
	}
	return awaitProcess(ctx, a.Bookie, bootBound, "the bookie to be registered", func(ctx context.Context) (bool, string) {
		there, err := a.BookieRegistered(ctx)
		return there, fmt.Sprint(err)
	})
}

// BookieRegistered says whether brokers find the bookie. One that was away from etcd for longer
// than its session of 10 s never registers again (4.17.2, 2026-11-23).
func (a *Apache) BookieRegistered(ctx context.Context) (bool, error) {
	found, err := a.Etcd.Client().Get(ctx, a.bookieKey, clientv3.WithCountOnly())
	return err == nil && found.Count == 1, err
}

// RestartBookie kills the bookie, and waits until a new process of it is registered.
func (a *Apache) RestartBookie(ctx context.Context) error {
	if err := a.Bookie.Kill(); err != nil {
		return err
	}
	return a.launchBookie(ctx)
}

func writeProperties(path string, all map[string]string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s=%s\n", name, all[name])
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// ApacheBroker is one real broker. It has a loopback address of its own. Its ports and its
// status file survive its lives.
type ApacheBroker struct {
	*Pulsar
	NativePort int // of Pulsar's own protocol
	PIDFile    string
}

// NewBroker prepares one more broker without starting it.
func (a *Apache) NewBroker() (*ApacheBroker, error) {
	a.brokers++
	name, host := fmt.Sprintf("pulsar-%d", a.brokers), fmt.Sprintf("127.0.0.%d", a.brokers)
	ports, err := a.lab.ports(2)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", name, err)
	}
	b := &ApacheBroker{
		Pulsar: &Pulsar{Port: ports[0], host: host, StatusFile: filepath.Join(a.lab.Dir, name+".status"),
			http: httpClient(Place{}.DialContext, 15*time.Second)},
		NativePort: ports[1], PIDFile: filepath.Join(a.lab.Dir, name+".pid"),
	}
	b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	store := fmt.Sprintf("etcd:http://%s:%d", a.options.EtcdHost(a.brokers), a.Etcd.Port)
	settings := map[string]string{
		"clusterName": PulsarCluster, "metadataStoreUrl": store, "configurationMetadataStoreUrl": store, "bookkeeperMetadataServiceUri": "metadata-store:" + store,
		"advertisedAddress": host, "bindAddress": host, "bindAddresses": "",
		"brokerServicePort": fmt.Sprint(b.NativePort), "webServicePort": fmt.Sprint(b.Port), "statusFilePath": b.StatusFile,
		"managedLedgerDefaultEnsembleSize": "1", "managedLedgerDefaultWriteQuorum": "1", "managedLedgerDefaultAckQuorum": "1",
		"loadManagerClassName": a.options.LoadManager, "defaultNumberOfNamespaceBundles": fmt.Sprint(PulsarBundles),
		"zookeeperSessionExpiredPolicy": "reconnect", "functionsWorkerEnabled": "false", "webSocketServiceEnabled": "false",
		"managedLedgerCacheSizeMB": "16", "numIOThreads": "2", "numHttpServerThreads": "8",
		"brokerDeleteInactiveTopicsEnabled": "false",
		"systemTopicEnabled":                fmt.Sprint(a.options.LoadManager == ExtensibleLoadManager), // it keeps owners in one
		"topicLevelPoliciesEnabled":         "false",
		// What was acknowledged stays, so that it can be counted.
		"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1",
	}
	maps.Copy(settings, a.options.Broker)
	conf := filepath.Join(a.lab.Dir, name+".conf")
	if err := errors.Join(writeProperties(conf, settings), os.WriteFile(b.StatusFile, []byte("OK\n"), 0o644)); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", name, err)
	}
	b.Process = a.process(name, "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", conf)
	a.lab.onClose(func() error { b.http.CloseIdleConnections(); return nil })
	return b, nil
}

// StartBroker prepares and starts one more broker and waits until it is ready.
func (a *Apache) StartBroker(ctx context.Context) (*ApacheBroker, error) {
	b, err := a.NewBroker()
	if err != nil {
		return nil, err
	}
	return b, b.Start(ctx)
}

// Launch starts the broker, again if need be, and does not wait.
func (b *ApacheBroker) Launch() error {
	if err := b.start(); err != nil {
		return err
	}
	return os.WriteFile(b.PIDFile, fmt.Append(nil, b.PID()), 0o644)
}

// Start launches the broker and waits until it is ready.
func (b *ApacheBroker) Start(ctx context.Context) error {
	if err := b.Launch(); err != nil {
		return err
	}
	return b.AwaitUp(ctx)
}

// AwaitUp waits until the broker is ready.
func (b *ApacheBroker) AwaitUp(ctx context.Context) error {
	return awaitProcess(ctx, b.Process, bootBound, b.Name+" to be ready", func(ctx context.Context) (bool, string) {
		code, body, err := b.get(ctx, "/admin/v2/brokers/ready")
		return err == nil && code == http.StatusOK, fmt.Sprint(code, body, err)
	})
}

// ServiceURL is where clients of Pulsar's own protocol connect.
func (b *ApacheBroker) ServiceURL() string {
	return fmt.Sprintf("pulsar://%s:%d", b.host, b.NativePort)
}

// Admin does one call of the admin API and returns the answer as it is, redirects too.
func (b *ApacheBroker) Admin(ctx context.Context, method, path, body string) (*ApacheAnswer, error) {
	return b.at(ctx, method, b.URL()+path, body)
}

// ApacheAnswer is one answer of the admin API.
type ApacheAnswer struct {
	Status int
	Header http.Header
	Body   string
}

func (b *ApacheBroker) at(ctx context.Context, method, to, body string) (*ApacheAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", b.Name, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", b.Name, err)
	}
	return &ApacheAnswer{resp.StatusCode, resp.Header, string(text)}, nil
}

// Do is Admin that follows redirects and wants success.
func (b *ApacheBroker) Do(ctx context.Context, method, path, body string) (string, error) {
	to := b.URL() + path
	for range 5 {
		a, err := b.at(ctx, method, to, body)
		switch {
		case err != nil:
			return "", err
		case a.Status == http.StatusTemporaryRedirect:
			to = a.Header.Get("Location")
		case a.Status/100 != 2:
			return "", fmt.Errorf("%s %s at %s: %d: %.300s", method, path, b.Name, a.Status, a.Body)
		default:
			return a.Body, nil
		}
	}
	return "", fmt.Errorf("%s %s at %s: led on and on, last to %s", method, path, b.Name, to)
}

// Owner is the URL of the broker that serves the topic, asked for at this one. If nobody
// served it, somebody does.
func (b *ApacheBroker) Owner(ctx context.Context, topic string) (string, error) {
	name, _ := PulsarTopic(topic)
	parts := strings.SplitN(strings.TrimPrefix(name, "persistent://"), "/", 3)
	body, err := b.Do(ctx, http.MethodGet, "/lookup/v2/topic/persistent/"+parts[0]+"/"+parts[1]+"/"+url.PathEscape(parts[2]), "")
	if err != nil {
		return "", err
	}
	var found struct {
		HTTPURL string `json:"httpUrl"`
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		return "", fmt.Errorf("look %s up: %w", topic, err)
	}
	return found.HTTPURL, nil
}
