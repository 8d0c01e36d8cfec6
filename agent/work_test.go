package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
)

// A storage that hangs keeps clients away, and says nothing of the broker's process.
func TestTheWorkOfABrokerDecidesReadinessAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fine, refuses, hangs = 0, 1, 2
		var how, asked atomic.Int32
		w := &work{log: slog.New(slog.DiscardHandler), now: make(chan struct{}, 1), works: func(ctx context.Context) error {
			asked.Add(1)
			switch how.Load() {
			case refuses:
				return errors.New("500 Internal Server Error")
			case hangs:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = w.Run(ctx)
		}()
		want := func(after time.Duration, text string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if err := w.err(); (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want %q", err, text)
			}
		}
		how.Store(refuses)
		want(0, "500 Internal") // it never did any, so one failure is enough
		how.Store(fine)
		want(workSoon, "")
		before := asked.Load()
		want(10*workEvery, "")
		if n := asked.Load() - before; n != 10 {
			t.Errorf("tried %d times in %v", n, 10*workEvery)
		}
		how.Store(hangs)
		want(workEvery+workTimeout, "")                   // once is no verdict
		want(workSoon+workTimeout, "not done within 10s") // twice is
		how.Store(fine)
		want(2*workSoon, "")
		how.Store(refuses)
		w.of("another process", true)
		want(0, "500 Internal")
		before = asked.Load()
		want(100*workEvery, "500 Internal")
		if n := asked.Load() - before; n > 105 {
			t.Errorf("a broker that fails was tried %d times in %v", n, 100*workEvery)
		}
		how.Store(fine)
		w.of("another process", true) // nothing new
		want(0, "500 Internal")
		w.of("", false)
		w.of("another process", true) // it answers again
		want(0, "")
		cancel()
		<-ended
	})
}

// What is under way when the broker is another process says nothing of that one, also where the
// one before was never tried.
func TestATryOfTheProcessBeforeIsNoneOfThisOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := make(chan struct{}), make(chan error)
		w := &work{log: slog.New(slog.DiscardHandler), now: make(chan struct{}, 1), works: func(context.Context) error {
			asked <- struct{}{}
			return <-answer
		}}
		w.of("process-1", true)
		var tries sync.WaitGroup
		tries.Go(func() { w.try(t.Context()) })
		<-asked
		w.of("process-2", true)
		answer <- nil
		tries.Wait()
		if w.err() == nil {
			t.Error("a process that was not tried is seen to do its work")
		}
		tries.Go(func() { w.try(t.Context()) })
		<-asked
		answer <- nil
		tries.Wait()
		if err := w.err(); err != nil {
			t.Error(err)
		}
	})
}

// Ill is who fails: peers that are ill are held for it, and ones that are well are not.
func TestTheMemberRecordSaysNothingOfABrokerWhoseWorkWasNotTried(t *testing.T) {
	besidePeers(t, nil, true, func(l *sidecarLife, _ *besideOf) {
		var mu sync.Mutex
		var told []cluster.Health
		who, _ := l.identity.get()
		w := &work{instance: who.Instance, up: true}
		l.inLoop(func() {
			l.work = w
			l.noteHealthOf = func(_ context.Context, n cluster.HealthNote) (bool, error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, n.Health)
				return true, nil
			}
		})
		for _, step := range []struct {
			of   *tried
			want cluster.Health
		}{
			{&tried{}, ""},
			{&tried{done: true}, cluster.HealthWell},
			{&tried{}, ""}, // another process
			{&tried{failures: 1, err: errors.New("the storage hangs")}, cluster.HealthIll},
		} {
			w.last.Store(step.of)
			l.until(l.age() + 2*healthEvery)
			mu.Lock()
			if len(told) == 0 || told[len(told)-1] != step.want {
				t.Errorf("told %q, want %q last", told, step.want)
			}
			mu.Unlock()
		}
	})
}
