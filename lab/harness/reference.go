package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ReferenceOptions says how a reference broker is started.
type ReferenceOptions struct {
	Name  string // the broker's, and the name of the process; required
	Place Place
	Args  []string // beyond address, name and directories; see lab/reference/cmd
}

// Reference is one reference broker. Its name, data and port survive its lives. It
// listens on every address of its place.
type Reference struct {
	*Process
	Port    int
	DataDir string
	PIDFile string
	http    *http.Client
}

// ErrNotServed is wrapped by Publish and Consume when an ordinary client would try again.
var ErrNotServed = errors.New("not served here now")

// NewReference prepares a broker without starting it.
func (l *Lab) NewReference(o ReferenceOptions) (*Reference, error) {
	bin, err := Build(ReferenceBroker)
	if err != nil {
		return nil, err
	}
	port, err := l.Port()
	if err != nil {
		return nil, fmt.Errorf("prepare broker %s: %w", o.Name, err)
	}
	dir := filepath.Join(l.Dir, o.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("prepare broker %s: %w", o.Name, err)
	}
	r := &Reference{
		Port: port, DataDir: filepath.Join(dir, "data"), PIDFile: filepath.Join(dir, "pid"),
		http: httpClient(o.Place.DialContext, 10*time.Second),
	}
	args := append([]string{
		"-listen", fmt.Sprintf("0.0.0.0:%d", port), "-name", o.Name, "-dir", r.DataDir,
		"-pid-file", r.PIDFile,
	}, o.Args...)
	r.Process = l.newProcess(o.Name, o.Place, bin, args)
	l.own(r.Process)
	l.onClose(func() error { r.http.CloseIdleConnections(); return nil })
	return r, nil
}

// StartReference prepares and starts a broker and waits until it answers.
func (l *Lab) StartReference(ctx context.Context, o ReferenceOptions) (*Reference, error) {
	r, err := l.NewReference(o)
	if err != nil {
		return nil, err
	}
	return r, r.Start(ctx)
}

// Start starts the broker, again if need be, and waits until it answers.
func (r *Reference) Start(ctx context.Context) error {
	if err := r.Launch(); err != nil {
		return err
	}
	return r.AwaitUp(ctx)
}

// Launch starts the broker and does not wait.
func (r *Reference) Launch() error { return r.start() }

// AwaitUp waits until something listens: what it says may need a token.
func (r *Reference) AwaitUp(ctx context.Context) error {
	return awaitProcess(ctx, r.Process, Patience, r.Name+" to listen", func(ctx context.Context) (bool, string) {
		conn, err := r.Place.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", r.Port))
		if err != nil {
			return false, err.Error()
		}
		conn.Close()
		return true, ""
	})
}

// URL is the admin URL inside the broker's place.
func (r *Reference) URL() string {
	return fmt.Sprintf("http://127.0.0.1:%d", r.Port)
}

// Publish publishes one message to the topic and returns when it is stored.
func (r *Reference) Publish(ctx context.Context, topic, data string) error {
	return r.client(ctx, "publish", map[string]any{"topic": topic, "data": data}, nil)
}

// Count is the number of messages that the topic holds, served or not.
func (r *Reference) Count(ctx context.Context, topic string) (int, error) {
	var stored struct {
		Messages int `json:"messages"`
	}
	err := r.client(ctx, "count", map[string]any{"topic": topic}, &stored)
	return stored.Messages, err
}

// Consume takes and acknowledges up to n messages as a durable subscription.
func (r *Reference) Consume(ctx context.Context, topic, subscription string, n int) (messages []string, err error) {
	err = r.client(ctx, "consume", map[string]any{"topic": topic, "subscription": subscription, "max": n}, &messages)
	return messages, err
}

// Attach has a consumer of the subscription at work until Detach, or the end of the broker.
func (r *Reference) Attach(ctx context.Context, topic, subscription string) error {
	return r.client(ctx, "attach", map[string]any{"topic": topic, "subscription": subscription}, nil)
}

// Detach ends what Attach has begun.
func (r *Reference) Detach(ctx context.Context, topic, subscription string) error {
	return r.client(ctx, "detach", map[string]any{"topic": topic, "subscription": subscription}, nil)
}

// MakeForeign makes a topic that Holdfast did not name.
func (r *Reference) MakeForeign(ctx context.Context, topic string) error {
	return r.client(ctx, "make", map[string]any{"topic": topic}, nil)
}

// Litter makes a topic that the broker lists, as it should not.
func (r *Reference) Litter(ctx context.Context, topic string) error {
	return r.client(ctx, "litter", map[string]any{"topic": topic}, nil)
}

// GiveAway makes the broker believe that another one of its cluster serves the topic.
func (r *Reference) GiveAway(ctx context.Context, topic string) error {
	return r.client(ctx, "give-away", map[string]any{"topic": topic}, nil)
}

func (r *Reference) client(ctx context.Context, verb string, request, into any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/client/%s", r.Port, verb)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", verb, err)
	case resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%s: %w", verb, ErrNotServed)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", verb, resp.Status, strings.TrimSpace(string(body)))
	case into == nil:
		return nil
	}
	return json.Unmarshal(body, into)
}
