package memory_test

import (
	"testing"

	"google.golang.org/grpc"

	"holdfast/cluster"
	"holdfast/cluster/guardtest"
	"holdfast/cluster/memory"
)

// The same as on a real etcd (lab/clustertest), for who has only this module.
func TestEachGuardRefusesWhatNoOtherDoes(t *testing.T) {
	guardtest.Run(t, func(t *testing.T) (cluster.Config, grpc.ClientConnInterface) {
		conn := memory.New(memory.Config{}).Conn(nil)
		t.Cleanup(func() { conn.Close() })
		return cluster.Config{}, conn
	})
}
