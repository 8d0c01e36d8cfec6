package harness

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// eachLink runs a test over every kind of link that this machine allows.
func eachLink(t *testing.T, test func(t *testing.T, l *Lab, e *Etcd, link Link)) {
	for _, kind := range []struct {
		name string
		make func(*Lab, *Etcd) (Link, error)
		can  func() error
	}{
		{"netns", NewNetnsLink, CanDropPackets},
		{"proxy", NewProxyLink, func() error { return nil }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			if err := kind.can(); err != nil {
				t.Skip(err)
			}
			l := ForTest(t)
			e, err := l.StartEtcd(t.Context(), EtcdOptions{})
			if err != nil {
				t.Fatal(err)
			}
			link, err := kind.make(l, e)
			if err != nil {
				t.Fatal(err)
			}
			if link.Kind() != kind.name {
				t.Fatalf("kind %q, want %q", link.Kind(), kind.name)
			}
			test(t, l, e, link)
		})
	}
}

// clientThrough is an etcd client whose every packet goes through the link.
func clientThrough(t *testing.T, link Link) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{link.Endpoint()},
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return link.Place().DialContext(ctx, "tcp", address)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func put(ctx context.Context, c *clientv3.Client, bound time.Duration, key string) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	_, err := c.Put(ctx, key, "x")
	return err
}

func TestCutLetsNothingThroughAndHealLetsItGoOn(t *testing.T) {
	eachLink(t, func(t *testing.T, l *Lab, e *Etcd, link Link) {
		ctx := t.Context()
		c := clientThrough(t, link)
		history, err := l.Watch(ctx, e, "/")
		if err != nil {
			t.Fatal(err)
		}
		if err := put(ctx, c, Patience, "/before"); err != nil {
			t.Fatal(err)
		}
		if _, err := history.Await(ctx, Patience, "the put before the cut", 0, PutKey("/before")); err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(link.Cut(), link.Cut()); err != nil {
			t.Fatal(err)
		}
		if err := put(ctx, c, time.Second, "/during"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("put during the cut: %v, want a deadline that passed", err)
		}
		// The lab's own client stands outside, and its put comes after the lost one.
		if err := put(ctx, e.Client(), Patience, "/outside"); err != nil {
			t.Fatalf("put from outside during the cut: %v", err)
		}
		if _, err := history.Await(ctx, Patience, "the put from outside", 0, PutKey("/outside")); err != nil {
			t.Fatal(err)
		}
		if c, found := history.Find(0, PutKey("/during")); found {
			t.Fatalf("came through the cut: %v", c)
		}

		if err := errors.Join(link.Heal(), link.Heal()); err != nil {
			t.Fatal(err)
		}
		if err := put(ctx, c, Patience, "/after"); err != nil {
			t.Fatalf("put after the heal: %v", err)
		}
	})
}
