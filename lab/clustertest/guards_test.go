package clustertest

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"holdfast/cluster"
	"holdfast/cluster/guardtest"
)

func TestEachGuardRefusesWhatNoOtherDoes(t *testing.T) {
	onEach(t, func(t *testing.T, e *server) {
		guardtest.Run(t, func(t *testing.T) (cluster.Config, grpc.ClientConnInterface) {
			conn := must[*grpc.ClientConn](t)(grpc.NewClient(strings.TrimPrefix(e.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials())))
			t.Cleanup(func() { conn.Close() })
			return e.config(t), conn
		})
	})
}
