package e2e

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"holdfast/lab/harness"
	"holdfast/lab/standin/danube"
)

// raftKind is the stand-in for a Danube broker with Raft, whose registration is the
// sidecar's.
var raftKind = kind{
	name:     "danube-raft",
	prepare:  prepareRaft,
	stops:    "it gives topics up only in its own cluster, which a cut may take away too: --fence ready,stop",
	boots:    "it says active of itself at each start, so its cluster may give it topics before its sidecar has it drained",
	moves:    "its own cluster gives the topics of a broker that has gone, or gave them up, to another",
	scatters: "its cluster lets nothing expire while none of them runs, so the first one back sees the others go",
}

func prepareRaft(s *stage, o brokerOptions) (broker, error) {
	if s.metadata == nil {
		m, err := s.StartDanubeMetadata()
		if err != nil {
			return nil, err
		}
		s.metadata = m
	}
	etcd, err := url.Parse(o.Etcd)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(s.metadata.Addr)
	if err != nil {
		return nil, err
	}
	metadata := net.JoinHostPort(etcd.Hostname(), port) // the host, as seen from its place
	d, err := s.NewDanube(harness.DanubeOptions{Name: o.ID, Place: o.Place, Metadata: metadata, TTL: o.TTL})
	if err != nil {
		return nil, err
	}
	b := danubeRaft{danubeBroker{d, filepath.Join(s.Dir, o.ID+".pid")}, s.metadata}
	return b, os.WriteFile(filepath.Join(d.DataDir, "node_id"), []byte(b.BrokerID()), 0o644)
}

// danubeRaft is release 0.8.
type danubeRaft struct {
	danubeBroker
	metadata *danube.Metadata
}

// BrokerID is the number in the name of the node.
func (b danubeRaft) BrokerID() string { return "10" + strings.TrimPrefix(b.Name, "n") }

func (b danubeRaft) Driver() []string {
	return []string{"--driver", "danube", "--registration", "own", "--broker-admin", "http://" + b.AdminAddr(),
		"--danube-lookup", "http://" + b.ClientAddr(), "--danube-metrics", "http://" + b.MetricsAddr(), "--data-dir", b.DataDir,
		"--broker-pid-file", b.pidFile, "--fence", "ready,stop",
		"--audit-interval", "300ms"} // nothing else tells what the cluster gave it
}

// Assign is what the leader does, but for the choice of the broker.
func (b danubeRaft) Assign(_ context.Context, name string, topics ...string) error {
	for _, topic := range topics {
		b.metadata.Place(name, topic)
	}
	return nil
}
