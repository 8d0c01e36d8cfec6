package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdOptions says how an etcd server is started. The zero value is fine.
type EtcdOptions struct {
	Name      string        // of the process and its log; default etcd
	Binary    string        // default: built by the lab
	Heartbeat time.Duration // default 50ms
	Election  time.Duration // default 500ms; 1.5 times it is the smallest TTL, rounded up to seconds
	Fsync     bool          // what is written is waited for; servers before 3.5 know nothing else
	Args      []string      // added
	TLS       *Authority    // listens with TLS as well, and wants a certificate of the authority; nil: no TLS
}

func (o EtcdOptions) withDefaults() (EtcdOptions, error) {
	if o.Name == "" {
		o.Name = "etcd"
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 50 * time.Millisecond
	}
	if o.Election == 0 {
		o.Election = 500 * time.Millisecond
	}
	var err error
	if o.Binary == "" {
		o.Binary, err = Build(EtcdServer)
	}
	return o, err
}

// Etcd is one etcd server: the only member, or one of an EtcdCluster. It listens on
// every address of the host, so that namespaces reach it. Its data and its ports
// survive its lives.
type Etcd struct {
	*Process
	Port   int
	Secure string // URL for clients with TLS; empty: none
	peer   string // URL for other members
	client *clientv3.Client
	lab    *Lab
}

// StartEtcd starts an etcd server and waits until it answers.
func (l *Lab) StartEtcd(ctx context.Context, o EtcdOptions) (*Etcd, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	e, err := l.newEtcd(o.Name)
	if err != nil {
		return nil, err
	}
	if o.TLS != nil {
		if o.Args, err = e.secure(o); err != nil {
			return nil, err
		}
	}
	e.prepare(o, e)
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	return e, e.connectSelf()
}

// secure has it listen at one more port, with TLS.
func (e *Etcd) secure(o EtcdOptions) (args []string, err error) {
	ports, err := e.lab.ports(1)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	cert, key, err := o.TLS.Issue(o.Name + "-server")
	e.Secure = fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	return append(o.Args, "--listen-client-urls", fmt.Sprintf("http://0.0.0.0:%d,%s", e.Port, e.Secure),
		"--cert-file", cert, "--key-file", key, "--client-cert-auth", "--trusted-ca-file", o.TLS.CACert), err
}

// newEtcd reserves the ports of a server.
func (l *Lab) newEtcd(name string) (*Etcd, error) {
	ports, err := l.ports(2)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	return &Etcd{Process: &Process{Name: name}, Port: ports[0], peer: fmt.Sprintf("http://127.0.0.1:%d", ports[1]), lab: l}, nil
}

// prepare makes the process of a server, one of members.
func (e *Etcd) prepare(o EtcdOptions, members ...*Etcd) {
	var initial []string
	for _, m := range members {
		initial = append(initial, m.Name+"="+m.peer)
	}
	args := append([]string{
		"--name", e.Name,
		"--data-dir", e.dataDir(),
		"--listen-client-urls", fmt.Sprintf("http://0.0.0.0:%d", e.Port),
		"--advertise-client-urls", e.Endpoint(),
		"--listen-peer-urls", e.peer,
		"--initial-advertise-peer-urls", e.peer,
		"--initial-cluster", strings.Join(initial, ","),
		"--heartbeat-interval", strconv.FormatInt(o.Heartbeat.Milliseconds(), 10),
		"--election-timeout", strconv.FormatInt(o.Election.Milliseconds(), 10),
		"--log-level", "warn",
		"--bcrypt-cost", "4", // else a password takes longer on a busy machine than who shows it waits
	}, o.Args...)
	if !o.Fsync {
		// What was written outlives the process all the same; only the host must not crash.
		// Else the tests measure how busy the disk is.
		args = append(args, "--unsafe-no-fsync")
	}
	e.Process = e.lab.newProcess(e.Name, Place{}, o.Binary, args)
	e.lab.own(e.Process)
}

// connectSelf makes the lab's own client.
func (e *Etcd) connectSelf() error {
	c, err := e.Connect("", "")
	if err != nil {
		return err
	}
	e.client = c
	e.lab.onClose(func() error { return e.client.Close() })
	return nil
}

// Start starts the server again on its data and ports, and waits until it answers.
func (e *Etcd) Start(ctx context.Context) error {
	if err := e.start(); err != nil {
		return err
	}
	return e.awaitHealthy(ctx)
}

// awaitHealthy waits until the server answers and has a leader.
func (e *Etcd) awaitHealthy(ctx context.Context) error {
	url := e.Endpoint() + "/health"
	return awaitProcess(ctx, e.Process, Patience, "etcd to answer", func(ctx context.Context) (bool, string) {
		code, body, err := httpGet(ctx, http.DefaultClient, url)
		if err != nil {
			return false, err.Error()
		}
		return code == http.StatusOK && strings.Contains(body, `"true"`), body
	})
}

// Endpoint is the client URL as seen from the host.
func (e *Etcd) Endpoint() string { return fmt.Sprintf("http://127.0.0.1:%d", e.Port) }

// Client is the lab's own client: on the host, never cut, root if auth is on.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// Connect makes another client from the host; the caller closes it.
func (e *Etcd) Connect(user, password string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{e.Endpoint()},
		DialTimeout: 5 * time.Second,
		Username:    user,
		Password:    password,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return c, nil
}

// EnableAuth turns on users and passwords: root with rootPassword, and user, who
// may read and write everything below prefix (all keys if it is empty). Client is
// root from then on.
func (e *Etcd) EnableAuth(ctx context.Context, rootPassword, user, password, prefix string) error {
	from, to := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from, to = "\x00", "\x00"
	}
	c := e.client
	for _, step := range []struct {
		verb string
		do   func() error
	}{
		{"add role", func() error { _, err := c.RoleAdd(ctx, user); return err }},
		{"grant role its keys", func() error {
			_, err := c.RoleGrantPermission(ctx, user, from, to, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		}},
		{"add user", func() error { _, err := c.UserAdd(ctx, user, password); return err }},
		{"grant user the role", func() error { _, err := c.UserGrantRole(ctx, user, user); return err }},
		{"add root", func() error { _, err := c.UserAdd(ctx, "root", rootPassword); return err }},
		{"grant root", func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err }},
		{"enable auth", func() error { _, err := c.AuthEnable(ctx); return err }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("enable etcd auth: %s: %w", step.verb, err)
		}
	}
	return e.AsRoot(rootPassword)
}

// AsRoot makes Client root, where users are on.
func (e *Etcd) AsRoot(password string) error {
	root, err := e.Connect("root", password)
	if err != nil {
		return fmt.Errorf("log in to etcd as root: %w", err)
	}
	was := e.client
	e.client = root
	return was.Close()
}

// httpGet reads at most 1 MB.
func httpGet(ctx context.Context, c *http.Client, url string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, string(b), err
}
