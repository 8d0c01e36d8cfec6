package neighbours

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/lab/bench/kit"
	"holdfast/lab/harness"
)

// fleet is the sidecars.
type fleet struct {
	endpoint string
	life     context.Context
	end      context.CancelFunc
	running  sync.WaitGroup
	sidecars []*sidecar

	mu     sync.Mutex
	proofs []time.Duration // from the send of a renewal to its proof
}

func newFleet(endpoint string) *fleet {
	f := &fleet{endpoint: endpoint}
	f.life, f.end = context.WithCancel(context.Background())
	return f
}

func (f *fleet) stop() {
	f.end()
	f.running.Wait()
}

func (f *fleet) proved(sent, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proofs = append(f.proofs, now.Sub(sent))
}

// taken returns the proofs since it was last asked.
func (f *fleet) taken() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.proofs
	f.proofs = nil
	return taken
}

// start begins all at once, as after a power cut, and waits until they are attached.
func (f *fleet) start(ctx context.Context, n int) error {
	began := time.Now()
	for i := range n {
		s, err := newSidecar(f, fmt.Sprintf("broker-%05d", i))
		if err != nil {
			return err
		}
		f.sidecars = append(f.sidecars, s)
		f.running.Go(func() { s.run(f.life) })
	}
	return errors.Join(f.await(ctx, began, (*sidecar).attached), f.await(ctx, began, (*sidecar).watching))
}

// await waits until something is so of all, since then.
func (f *fleet) await(ctx context.Context, since time.Time, so func(*sidecar, time.Time) bool) error {
	return harness.Await(ctx, kit.StartBound, "all sidecars", func(context.Context) (bool, string) {
		missing := 0
		for _, s := range f.sidecars {
			if !so(s, since) {
				missing++
			}
		}
		return missing == 0, fmt.Sprintf("%d of %d are missing", missing, len(f.sidecars))
	})
}

// lost is how many leases were lost so far.
func (f *fleet) lost() (n int) {
	for _, s := range f.sidecars {
		n += s.keeper.View().Losses
	}
	return n
}

// cuts is how often one was detached so far.
func (f *fleet) cuts() (n int) {
	for _, s := range f.sidecars {
		n += int(s.cuts.Load())
	}
	return n
}
