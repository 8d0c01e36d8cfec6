package danube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi"
	"holdfast/internal/fakenet"
	"holdfast/standstill"
)

// bounded wants an error from call, no later than its context.
func bounded(t *testing.T, name string, call func(context.Context) error) error {
	t.Helper()
	standstill.Begin(t)
	err, late := timed(name, call)
	standstill.Check(t, late)
	return err
}

// timed is bounded for a goroutine; late says if the call ended too late, or well.
func timed(name string, call func(context.Context) error) (err, late error) {
	const bound = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	start := time.Now()
	if err = call(ctx); err == nil {
		return nil, fmt.Errorf("%s succeeded", name)
	}
	took := time.Since(start)
	return err, standstill.Judge(name+" ended", start, start.Add(took), took, bound+time.Second)
}

func TestWhateverListensThereNothingHangsAndNothingIsHealthy(t *testing.T) {
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // an empty HTTP/2 SETTINGS frame
	for name, serve := range map[string]func(net.Conn){
		"closes at once":    func(c net.Conn) { c.Close() },
		"says nothing":      func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"never reads":       func(net.Conn) {},
		"half closes":       func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite(); _, _ = io.Copy(io.Discard, c) },
		"a web server":      func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); c.Close() },
		"garbage":           func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte{0xff, 0}, 1<<12)) },
		"settings, no more": func(c net.Conn) { _, _ = c.Write(settings); _, _ = io.Copy(io.Discard, c) },
		"settings for ever": func(c net.Conn) {
			for {
				if _, err := c.Write(bytes.Repeat(settings, 100)); err != nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
		},
		"settings, then silence in a frame": func(c net.Conn) {
			_, _ = c.Write(append(settings, 0, 0xff, 0xff, 0))
			_, _ = io.Copy(io.Discard, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			standstill.Begin(t)
			address := fakenet.Listen(t, serve)
			for _, raft := range []bool{false, true} {
				b := opened(t, Config{AdminURL: "http://" + address, LookupURL: "http://" + address, MetricsURL: "http://" + address, Raft: raft, Store: &memory{}})
				var wg sync.WaitGroup
				ended := make(chan error, len(calls(b)))
				for what, call := range calls(b) {
					wg.Go(func() {
						err, late := timed(what, call)
						ended <- late
						if err != nil && !strings.Contains(err.Error(), "--broker-admin http://"+address) && !strings.Contains(err.Error(), "--danube-") {
							t.Errorf("%s does not name the setting: %v", what, err)
						}
					})
				}
				wg.Wait()
				for range len(calls(b)) {
					standstill.Check(t, <-ended)
				}
			}
		})
	}
}

// calls are all that a driver can be asked.
func calls(b brokerapi.Broker) map[string]func(context.Context) error {
	all := map[string]func(context.Context) error{
		"probe":  func(ctx context.Context) error { _, err := b.Probe(ctx); return err },
		"topics": func(ctx context.Context) error { _, err := b.Topics(ctx); return err },
	}
	switch b.(type) {
	case *etcdBroker:
		all["serve"] = func(ctx context.Context) error { return b.Serve(ctx, "/default/a", nil) }
	case *raftBroker:
		all["withdraw"] = func(ctx context.Context) error { return b.Withdraw(ctx, "/default/a") }
	}
	if s, ok := b.(brokerapi.ModeSetter); ok {
		all["drain"] = func(ctx context.Context) error { return s.SetMode(ctx, brokerapi.Drained, "test") }
	}
	return all
}

func TestAHugeAnswerIsRefused(t *testing.T) {
	f := newFake(t)
	b := f.etcd(t, &memory{f: f})
	f.set(func() { f.believed = append(f.believed, strings.Repeat("9", maxMessage+1)) })
	_, err := b.Topics(soon(t))
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "ResourceExhausted") {
		t.Error(err)
	}
}

func TestAnErrorIsFitForATerminal(t *testing.T) {
	f := newFake(t)
	b := f.etcd(t, &memory{f: f})
	f.fails("HealthCheck", codes.Internal, "\x1b[31mred\nalert"+strings.Repeat("!", 10000))
	err := health(soon(t), b)
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 500 || !strings.Contains(err.Error(), "Internal") {
		t.Errorf("%q", err)
	}
}

func TestMetricsOfAnySizeAreReadAsFarAsNeeded(t *testing.T) {
	f := newFake(t)
	b := f.etcd(t, &memory{f: f})
	f.set(func() { f.metrics += strings.Repeat("up{broker=\""+fakeID+"\"} 1\n", 200_000) })
	if who, err := b.Probe(soon(t)); err != nil || who.Instance != fakeID {
		t.Errorf("%+v, %v", who, err)
	}
}

func TestADeadlineThatTheBrokerWasTheFirstToNoticeIsOne(t *testing.T) {
	f := newFake(t)
	b := f.etcd(t, &memory{f: f})
	f.set(func() {
		f.answers["HealthCheck"] = func(ctx context.Context) (any, error) {
			deadline, _ := ctx.Deadline()
			time.Sleep(time.Until(deadline) - 3*time.Millisecond)
			return nil, status.Error(codes.Canceled, "context canceled")
		}
	})
	if err := bounded(t, "probe", func(ctx context.Context) error { return health(ctx, b) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	f.fails("HealthCheck", codes.Canceled, "shutting down")
	if err := health(soon(t), b); err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
