package memory_test

import (
	"testing"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// The transactions of the typed client, with the client's own work.
func BenchmarkPutState(b *testing.B) {
	for _, c := range []struct {
		name string
		via  memory.Path
	}{{"perfect", nil}, {"link", memory.NewLink()}} {
		b.Run(c.name, func(b *testing.B) {
			client := cluster.Over(cluster.Config{}, memory.New(memory.Config{}).Conn(c.via), nil)
			b.ReportAllocs()
			revision := int64(0)
			for b.Loop() {
				var err error
				if revision, err = client.PutState(b.Context(), "b1", cluster.State{Mode: cluster.ModeActive}, revision); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	client := cluster.Over(cluster.Config{}, memory.New(memory.Config{}).Conn(nil), nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Snapshot(b.Context(), "b1"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKeepAlive(b *testing.B) {
	client := cluster.Over(cluster.Config{}, memory.New(memory.Config{}).Conn(nil), nil)
	id, _, err := client.Grant(b.Context(), 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.KeepAlive(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}
