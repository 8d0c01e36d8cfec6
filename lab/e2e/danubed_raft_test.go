package e2e

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast/brokerapi/danube/danubepb"
	"holdfast/lab/harness"
	standin "holdfast/lab/standin/danube"
)

// danubeRaft is release 0.8, which keeps its metadata itself. Its sidecar registers it in
// the etcd that Holdfast has for itself.
type danubeRaft struct {
	danubeBroker
}

// Assign is a client that creates the topics; the brokers' leader chooses.
func (b danubeRaft) Assign(ctx context.Context, _ string, topics ...string) error {
	for _, topic := range topics {
		_, err := b.Topics.CreateTopic(ctx, &danubepb.NewTopicRequest{Name: topic, DispatchStrategy: danubepb.DispatchStrategy_Reliable})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return err
		}
	}
	return nil
}

func (b danubeRaft) Driver() []string {
	return append(b.danubeBroker.Driver(), "--registration", "own")
}

func raftKind(m *standin.Metadata, change func(*harness.DanubeOptions)) kind {
	return kind{name: "danube with Raft", prepare: func(s *stage, o brokerOptions) (broker, error) {
		d, err := newDanubed(s, o, func(d *harness.DanubeOptions) {
			d.Etcd, d.Metadata = "", m.Addr
			if change != nil {
				change(d)
			}
		})
		if err != nil {
			return nil, err
		}
		return danubeRaft{danubeBroker{d, filepath.Join(s.Dir, o.ID+".pid")}}, nil
	}}
}
