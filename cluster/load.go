package cluster

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// loadReportMost bounds the value of a load report, in bytes of topic names. etcd takes
// no request above 1.5 MiB.
const loadReportMost = 1 << 20

// LoadReport says which topics a broker holds, as it knows it itself.
type LoadReport struct {
	BrokerID    string
	Incarnation string
	Epoch       int64
	Topics      []string
	At          time.Time
}

// loadValue has the names and units that brokers use in reports of their own: whole
// seconds since 1970, and topics as objects.
type loadValue struct {
	BrokerID    string      `json:"broker_id"`
	Topics      []loadTopic `json:"topics"`
	TopicCount  int         `json:"topic_count"` // above len(topics) when not all had room
	Timestamp   int64       `json:"timestamp"`
	Incarnation string      `json:"incarnation"`
	Epoch       int64       `json:"epoch"`
}

type loadTopic struct {
	Name string `json:"topic_name"`
}

// PutLoad writes the broker's load report, under no lease. It returns ErrChanged when the
// broker's registration is not of the report's epoch any more.
func (c *Client) PutLoad(ctx context.Context, r LoadReport) error {
	if err := checkBroker(r.BrokerID); err != nil {
		return err
	}
	value := loadValue{BrokerID: r.BrokerID, Topics: []loadTopic{}, TopicCount: len(r.Topics),
		Timestamp: r.At.Unix(), Incarnation: r.Incarnation, Epoch: r.Epoch}
	size := 0
	for _, topic := range r.Topics {
		if size += len(`{"topic_name":""},`) + 2*len(topic); size > loadReportMost { // escapes may double a name
			break
		}
		value.Topics = append(value.Topics, loadTopic{topic})
	}
	put, err := putJSON(c.keys.Load(r.BrokerID), value)
	if err != nil {
		return err
	}
	guard := clientv3.Compare(clientv3.CreateRevision(c.keys.Registration(r.BrokerID)), "=", r.Epoch)
	if _, err := c.write(ctx, []clientv3.Cmp{guard}, []clientv3.Op{put}); err != nil {
		return fmt.Errorf("write load report of broker %s: %w", r.BrokerID, err)
	}
	return nil
}
