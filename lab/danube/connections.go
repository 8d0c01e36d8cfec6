package danube

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/brokerapi/danube/danubepb"
)

// callBound is how long a broker may take for one answer.
const callBound = 5 * time.Second

// connections are those to the brokers' ports for clients, by host:port.
type connections struct {
	seeds []string // host:port of the brokers, known from the start

	mu  sync.Mutex
	all map[string]*grpc.ClientConn
}

func (c *connections) to(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.all[addr]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	if c.all == nil {
		c.all = map[string]*grpc.ClientConn{}
	}
	c.all[addr] = conn
	return conn, nil
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.all {
		_ = conn.Close()
	}
	c.all = nil
}

// owner asks the brokers in turn, beginning with the one of that number, until one says who
// serves the topic. Where one says that another does, that one is not asked.
func (c *connections) owner(ctx context.Context, topic string, first int) (*grpc.ClientConn, error) {
	var last error
	for i := range c.seeds {
		seed := c.seeds[(first+i)%len(c.seeds)]
		conn, err := c.to(seed)
		if err != nil {
			return nil, err
		}
		found, err := lookup(ctx, conn, topic)
		switch {
		case err != nil:
			last = fmt.Errorf("look %s up at %s: %w", topic, seed, err)
		case found == "":
			return conn, nil
		default:
			return c.to(found)
		}
	}
	return nil, last
}

// lookup returns the host:port of the broker that serves the topic; empty: it is the one asked.
func lookup(ctx context.Context, conn *grpc.ClientConn, topic string) (addr string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	found, err := danubepb.NewDiscoveryClient(conn).TopicLookup(ctx, &danubepb.TopicLookupRequest{Topic: topic})
	switch {
	case err != nil:
		return "", err
	case found.ResponseType == danubepb.TopicLookupResponse_Connect:
		return "", nil
	case found.ResponseType != danubepb.TopicLookupResponse_Redirect || found.ConnectUrl == "":
		return "", fmt.Errorf("answered %v", found)
	}
	_, addr, named := strings.Cut(found.ConnectUrl, "://")
	if !named {
		addr = found.ConnectUrl
	}
	return strings.TrimSuffix(addr, "/"), nil
}
