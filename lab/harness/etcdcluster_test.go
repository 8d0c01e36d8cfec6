package harness

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"holdfast/standstill"
)

func TestAClusterOutlivesItsLeader(t *testing.T) {
	l := ForTest(t)
	ctx := t.Context()
	c, err := l.StartEtcdCluster(ctx, 3, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, c.Client(), Patience, "/a"); err != nil {
		t.Fatal(err)
	}
	first, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Kill(); err != nil {
		t.Fatal(err)
	}
	second, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Fatalf("%s still leads", first.Name)
	}
	if err := put(ctx, c.Client(), Patience, "/b"); err != nil {
		t.Fatal(err)
	}
	if err := first.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, first.Client(), Patience, "/c"); err != nil {
		t.Fatal(err)
	}
	if err := second.Freeze(); err != nil {
		t.Fatal(err)
	}
	if third, err := c.Leader(ctx); err != nil || third == second {
		t.Fatalf("%v leads, %v", third, err)
	}
	if err := second.Thaw(); err != nil {
		t.Fatal(err)
	}
}

func TestLinksToMembersAreCutOneByOne(t *testing.T) {
	for _, kind := range []string{"netns", "proxy"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "proxy" {
				t.Setenv(CutVariable, "proxy")
			} else if err := CanDropPackets(); err != nil {
				t.Skip(err)
			}
			l := ForTest(t)
			ctx := t.Context()
			c, err := l.StartEtcdCluster(ctx, 3, EtcdOptions{})
			if err != nil {
				t.Fatal(err)
			}
			links, err := NewLinks(l, c.Members...)
			if err != nil {
				t.Fatal(err)
			}
			var clients []*clientv3.Client
			for _, link := range links {
				clients = append(clients, clientThrough(t, link))
			}
			for i, link := range links {
				if err := link.Cut(); err != nil {
					t.Fatal(err)
				}
				for j, client := range clients {
					bound := Patience
					if i == j {
						bound = 500 * time.Millisecond
					}
					err := put(ctx, client, bound, "/x")
					if i == j && !errors.Is(err, context.DeadlineExceeded) || i != j && err != nil {
						t.Fatalf("member %d is cut off, a put to %d: %v", i+1, j+1, err)
					}
				}
				if err := link.Heal(); err != nil {
					t.Fatal(err)
				}
				if err := put(ctx, clients[i], Patience, "/x"); err != nil {
					t.Fatalf("after the heal of %d: %v", i+1, err)
				}
			}
		})
	}
}

func TestASlowEndpointTakesItsTimeEachWay(t *testing.T) {
	l := ForTest(t)
	ctx := t.Context()
	e, err := l.StartEtcd(ctx, EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url, err := NewSlowEndpoint(l, e, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := put(ctx, c, Patience, "/a"); err != nil {
		t.Fatal(err)
	}
	began := standstill.Begin(t)
	if err := put(ctx, c, Patience, "/a"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took < 200*time.Millisecond {
		t.Errorf("a put took %v, want 200 ms and a little", took)
	}
	standstill.Within(t, "put", began, took, 600*time.Millisecond)
}
