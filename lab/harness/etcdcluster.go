package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// EtcdCluster is an etcd of several members, each a process that can be frozen, killed
// and started again by itself. Members reach each other directly: a link cuts off a
// client of a member, never the member.
type EtcdCluster struct {
	Members []*Etcd
	client  *clientv3.Client
}

// StartEtcdCluster starts an etcd of n members, called etcd1 and so on after the name in
// the options, and waits until each of them answers.
func (l *Lab) StartEtcdCluster(ctx context.Context, n int, o EtcdOptions) (*EtcdCluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &EtcdCluster{}
	var urls []string
	for i := range n {
		e, err := l.newEtcd(fmt.Sprintf("%s%d", o.Name, i+1))
		if err != nil {
			return nil, err
		}
		c.Members = append(c.Members, e)
		urls = append(urls, e.Endpoint())
	}
	for _, e := range c.Members {
		e.prepare(o, c.Members...)
		if err := e.start(); err != nil { // without a quorum there is no answer to wait for
			return nil, err
		}
	}
	for _, e := range c.Members {
		if err := errors.Join(e.awaitHealthy(ctx), e.connectSelf()); err != nil {
			return nil, err
		}
	}
	c.client, err = clientv3.New(clientv3.Config{
		Endpoints:            urls,
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    time.Second, // leaves a member that is frozen
		DialKeepAliveTimeout: time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	l.onClose(c.client.Close)
	return c, nil
}

// Client is the lab's own client of all members: on the host, never cut.
func (c *EtcdCluster) Client() *clientv3.Client { return c.client }

// Leader returns the member that leads, as the members that answer see it.
func (c *EtcdCluster) Leader(ctx context.Context) (leader *Etcd, err error) {
	err = Await(ctx, Patience, "a leader", func(ctx context.Context) (bool, string) {
		saw := "no answer"
		for _, e := range c.Members {
			one, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			st, err := e.client.Status(one, e.Endpoint())
			cancel()
			if err != nil {
				saw = err.Error()
				continue
			}
			if st.Leader == st.Header.MemberId && st.Leader != 0 {
				leader = e
				return true, ""
			}
			saw = fmt.Sprintf("%s sees leader %x", e.Name, st.Leader)
		}
		return false, saw
	})
	return leader, err
}
