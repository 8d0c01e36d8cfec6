package clustertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/cluster"
)

// Only the first bumps the era. Who saw nobody registered looks once more.
func TestAHerdThatRegistersAtOnceTriesTwiceAtMost(t *testing.T) {
	const herd = 200
	onEach(t, func(t *testing.T, e *server) {
		c := open(t, e.config(t))
		var all sync.WaitGroup
		var tries atomic.Int32
		begin, ready := make(chan struct{}), sync.WaitGroup{}
		ready.Add(herd)
		for i := range herd {
			all.Go(func() {
				id := fmt.Sprintf("n%03d", i)
				seen, err := c.Snapshot(bounded(t), id)
				under, _, granted := c.Grant(bounded(t), time.Minute)
				ready.Done()
				if err = errors.Join(err, granted); err != nil {
					t.Error(err)
					return
				}
				<-begin
				for n := 1; n <= 2; n++ {
					tries.Add(1)
					done, err := c.Register(bounded(t), cluster.RegisterRequest{LeaseID: under, Value: []byte(`{}`), Seen: seen, Member: cluster.Member{At: at}})
					if err == nil {
						if done.Era != 1 {
							t.Errorf("%s registered in era %d, want 1", id, done.Era)
						}
						return
					}
					if !errors.Is(err, cluster.ErrChanged) {
						t.Error(err)
						return
					}
					if seen, err = c.Snapshot(bounded(t), id); err != nil {
						t.Error(err)
						return
					}
				}
				t.Errorf("%s is not registered after two tries", id)
			})
		}
		ready.Wait() // everybody has seen that nobody is registered
		close(begin)
		all.Wait()
		if n := tries.Load(); n != 2*herd-1 {
			t.Errorf("%d tries by %d, want all but one to try twice", n, herd)
		}
	})
}
