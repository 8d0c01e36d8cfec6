package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PulsarOptions says how a stand-in of a Pulsar broker is started.
type PulsarOptions struct {
	Name           string        // of the process; required
	Etcd           string        // URL of its metadata store; required
	SessionTimeout time.Duration // default 3 s
}

// PulsarCluster is the name of the lab's Pulsar cluster.
const PulsarCluster = "lab"

// PulsarBundles is how many bundles its namespaces have.
const PulsarBundles = 4

// Pulsar is one stand-in broker. Its port, its status file and its messages survive its lives.
type Pulsar struct {
	*Process
	Port       int
	StatusFile string
	host       string // of the loopback
	data       string
	http       *http.Client
}

// NewPulsar prepares a broker without starting it.
func (l *Lab) NewPulsar(o PulsarOptions) (*Pulsar, error) {
	bin, err := Build(PulsarBroker)
	if err != nil {
		return nil, err
	}
	port, err := l.Port()
	if err != nil {
		return nil, fmt.Errorf("prepare Pulsar broker %s: %w", o.Name, err)
	}
	p := &Pulsar{Port: port, host: "127.0.0.1", StatusFile: filepath.Join(l.Dir, o.Name+".status"), data: filepath.Join(l.Dir, "bookies"),
		http: httpClient(Place{}.DialContext, 5*time.Second)}
	p.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if err := errors.Join(os.MkdirAll(p.data, 0o755), os.WriteFile(p.StatusFile, []byte("OK\n"), 0o644)); err != nil {
		return nil, fmt.Errorf("prepare Pulsar broker %s: %w", o.Name, err)
	}
	p.Process = l.newProcess(o.Name, Place{}, bin, []string{
		"-cluster", PulsarCluster, "-listen", p.Advertised(), "-etcd", o.Etcd, "-data", p.data, "-status-file", p.StatusFile,
		"-session-timeout", cmp.Or(o.SessionTimeout, 3*time.Second).String(), "-bundles", fmt.Sprint(PulsarBundles),
	})
	l.own(p.Process)
	l.onClose(func() error { p.http.CloseIdleConnections(); return nil })
	return p, nil
}

// Launch starts the broker, again if need be, and does not wait.
func (p *Pulsar) Launch() error { return p.start() }

// Start launches the broker and waits until it is ready. What an earlier life left
// registered is waited for.
func (p *Pulsar) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	return p.AwaitUp(ctx)
}

// AwaitUp waits until the broker is ready.
func (p *Pulsar) AwaitUp(ctx context.Context) error {
	return awaitProcess(ctx, p.Process, Patience, p.Name+" to be ready", func(ctx context.Context) (bool, string) {
		code, body, err := httpGet(ctx, p.http, p.URL()+"/status.html")
		if err != nil {
			return false, err.Error()
		}
		// Without its status file it says 404, ready or not.
		return code == http.StatusOK || code == http.StatusNotFound, body
	})
}

// Advertised is what the broker calls itself.
func (p *Pulsar) Advertised() string { return net.JoinHostPort(p.host, strconv.Itoa(p.Port)) }

// URL is the admin URL inside the broker's place.
func (p *Pulsar) URL() string {
	return "http://" + p.Advertised()
}

// PulsarTopic is the full name of a Holdfast topic in Pulsar, and its namespace.
func PulsarTopic(topic string) (name, namespace string) {
	ns, local, _ := strings.Cut(strings.TrimPrefix(topic, "/"), "/")
	tenant, ns2, ok := strings.Cut(ns, "~")
	if !ok {
		tenant, ns2 = "public", ns
	}
	namespace = tenant + "/" + ns2
	return "persistent://" + namespace + "/" + local, namespace
}

// PulsarBundle is the range of the bundle that the Holdfast topic is in.
func PulsarBundle(topic string) string {
	name, _ := PulsarTopic(topic)
	width := uint64(1<<32) / PulsarBundles
	n := uint64(crc32.ChecksumIEEE([]byte(name))) / width
	return fmt.Sprintf("0x%08x_0x%08x", n*width, min((n+1)*width, 1<<32-1))
}

// Owner is the address of the broker that serves the topic, asked for at this one. If
// nobody served it, somebody does.
func (p *Pulsar) Owner(ctx context.Context, topic string) (string, error) {
	name, _ := PulsarTopic(topic)
	parts := strings.SplitN(strings.TrimPrefix(name, "persistent://"), "/", 3)
	at := p.URL() + "/lookup/v2/topic/persistent/" + parts[0] + "/" + parts[1] + "/" + url.PathEscape(parts[2])
	for range 5 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return "", err
		}
		resp, err := p.http.Do(req)
		if err != nil {
			return "", fmt.Errorf("look %s up: %w", topic, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if at = resp.Header.Get("Location"); resp.StatusCode == http.StatusTemporaryRedirect {
			continue
		}
		var owner struct{ HTTPURL string }
		if err := json.Unmarshal(body, &owner); err != nil || resp.StatusCode != http.StatusOK {
			return "", fmt.Errorf("look %s up: %s: %s", topic, resp.Status, body)
		}
		return owner.HTTPURL, nil
	}
	return "", fmt.Errorf("look %s up: led on and on, last to %s", topic, at)
}

// Publish looks the topic up here and publishes one message where it is served.
func (p *Pulsar) Publish(ctx context.Context, topic string, data []byte) error {
	owner, err := p.Owner(ctx, topic)
	if err != nil {
		return err
	}
	return p.publishAt(ctx, owner, topic, data)
}

func (p *Pulsar) publishAt(ctx context.Context, owner, topic string, data []byte) error {
	name, _ := PulsarTopic(topic)
	return p.post(ctx, owner+"/lab/publish?topic="+url.QueryEscape(name), data)
}

// PublishHere publishes one message to this broker. It is ErrNotServed when this one does
// not serve the topic.
func (p *Pulsar) PublishHere(ctx context.Context, topic string, data []byte) error {
	return p.publishAt(ctx, p.URL(), topic, data)
}

func (p *Pulsar) post(ctx context.Context, to string, data []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return fmt.Errorf("post to %s: %w", p.Name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		body, _ := io.ReadAll(resp.Body)
		err := fmt.Errorf("post to %s: %s: %s", p.Name, resp.Status, body)
		if resp.StatusCode == http.StatusServiceUnavailable {
			err = fmt.Errorf("%w: %w", ErrNotServed, err)
		}
		return err
	}
	return nil
}

// Count is the number of messages that the topic holds.
func (p *Pulsar) Count(topic string) (int, error) {
	name, _ := PulsarTopic(topic)
	text, err := os.ReadFile(filepath.Join(p.data, url.PathEscape(strings.TrimPrefix(name, "persistent://"))+".log"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return bytes.Count(text, []byte("\n")), err
}

// Owned are the bundles that the broker says it owns, those that are its own for life
// apart: tenant/ns/0x…_0x….
func (p *Pulsar) Owned(ctx context.Context) (shared, own []string, err error) {
	code, body, err := p.get(ctx, "/admin/v2/brokers/"+PulsarCluster+"/"+p.Advertised()+"/ownedNamespaces")
	if err != nil || code != http.StatusOK {
		return nil, nil, errors.Join(err, fmt.Errorf("ask %s what it owns: %d: %s", p.Name, code, body))
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return nil, nil, fmt.Errorf("ask %s what it owns: %w", p.Name, err)
	}
	for name := range list {
		// The extensible manager lists the bundle by which a broker is watched, too.
		if strings.HasPrefix(name, "pulsar/") || strings.HasPrefix(name, "sla-monitor/") {
			own = append(own, name)
		} else {
			shared = append(shared, name)
		}
	}
	slices.Sort(shared)
	return shared, own, nil
}

// StatusPage is the status of /status.html, which load balancers ask.
func (p *Pulsar) StatusPage(ctx context.Context) (code int, err error) {
	code, _, err = p.get(ctx, "/status.html")
	return code, err
}

func (p *Pulsar) get(ctx context.Context, path string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL()+path, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
