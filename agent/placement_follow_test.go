package agent

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/cluster"
	"holdfast/recovery"
	"holdfast/recovery/topics"
)

// seeing is what takes up the assignments of all brokers for the broker b0.
func seeing(assigned func(cluster.Update)) *brokersSeen {
	placer := topics.NewPlacer(topics.PlacerSettings{Me: func() string { return "b0" }}, nil, nil, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return &brokersSeen{id: "b0", keys: cluster.NewKeys(""), placer: placer, assigned: assigned}
}

// page is so many keys of a list, from the nth on, of twenty brokers.
func (b *brokersSeen) page(from, n int) (puts []cluster.KV) {
	for i := from; i < from+n; i++ {
		puts = append(puts, cluster.KV{Key: b.keys.Assignment(fmt.Sprintf("b%d", i%20), fmt.Sprintf("/some-namespace/topic-%06d", i)), CreateRevision: int64(i + 1), ModRevision: int64(i + 1)})
	}
	return puts
}

// A list is in memory once, as what is kept of it, and is never there as it was read.
func TestAListOfAHundredThousandAssignmentsIsNotHeld(t *testing.T) {
	b := seeing(func(cluster.Update) {})
	held := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	const topics, page = 100_000, 1000
	for list := range 2 { // as after a lost connection
		before, most := held(), int64(0)
		for from := 0; from < topics; from += page {
			b.take(cluster.Update{Full: from == 0, More: from+page < topics, Revision: topics, Puts: b.page(from, page)})
			if from%(10*page) == 9*page {
				most = max(most, held()-before)
			}
		}
		limit := int64(16 << 20)
		if list > 0 {
			limit = 1 << 20
		}
		if t.Logf("%d bytes", most); most > limit {
			t.Errorf("list %d: %d bytes", list, most)
		}
	}
	runtime.KeepAlive(b)
}

func TestOurAssignmentsOfAListInPartsComeAtItsEnd(t *testing.T) {
	var got []cluster.Update
	b := seeing(func(u cluster.Update) { got = append(got, u) })
	state := cluster.KV{Key: b.keys.State("b1"), Value: []byte(`{"mode":"drained"}`)}
	b.take(cluster.Update{Full: true, More: true, Revision: 7, Puts: append(b.page(0, 40), state)})
	b.take(cluster.Update{More: true, Revision: 7, Puts: b.page(40, 40)})
	b.take(cluster.Update{Full: true, More: true, Revision: 9, Puts: append(b.page(0, 30), state)}) // it failed, and begins anew
	if len(got) > 0 {
		t.Errorf("before the end of the list: %+v", got)
	}
	b.take(cluster.Update{Revision: 9, Puts: b.page(30, 30)})
	key := func(i int) string { return b.page(i, 1)[0].Key }
	if len(got) != 1 || !got[0].Full || got[0].Revision != 9 || !slices.Equal(got[0].PutKeys(), []string{key(0), key(20), key(40)}) {
		t.Errorf("at the end of the list: %+v", got)
	}
	if peers, _ := b.placer.Fleet(); peers["b1"].Mode != recovery.Drained {
		t.Errorf("modes: %+v", peers)
	}
	b.take(cluster.Update{Revision: 10, Puts: b.page(60, 20), Deletes: []string{key(20), key(1)}})
	if len(got) != 2 || got[1].Full || !slices.Equal(got[1].PutKeys(), []string{key(60)}) || !slices.Equal(got[1].Deletes, []string{key(20)}) {
		t.Errorf("a change: %+v", got[1:])
	}
}
