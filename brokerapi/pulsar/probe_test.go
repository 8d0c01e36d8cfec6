package pulsar

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A storage that hangs keeps clients away, and says nothing of the broker's process.
func TestTheWorkOfABrokerIsTriedBesideTheProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fine, refuses, hangs = 0, 1, 2
		var how, asked atomic.Int32
		w := newWork(func(ctx context.Context) error {
			asked.Add(1)
			switch how.Load() {
			case refuses:
				return errors.New("500 Internal Server Error")
			case hangs:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		defer w.close()
		process := "one"
		want := func(after time.Duration, text string) {
			t.Helper()
			_ = w.unable(process, false)
			for synctest.Wait(); after > 0; after -= time.Second { // it is probed each second
				time.Sleep(time.Second)
				_ = w.unable(process, false)
				synctest.Wait()
			}
			if err := w.unable(process, false); (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
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
		process = "two"
		want(0, "500 Internal")
		before = asked.Load()
		want(100*workEvery, "500 Internal")
		if n := asked.Load() - before; n > 105 {
			t.Errorf("a broker that fails was tried %d times in %v", n, 100*workEvery)
		}
		how.Store(fine)
		_ = w.unable(process, true) // it answers again
		want(0, "")
	})
}

// What is under way when the broker is another process says nothing of that one, also where the
// one before was never tried.
func TestATryOfTheProcessBeforeIsNoneOfThisOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		w := newWork(func(context.Context) error { return <-answers })
		_ = w.unable("one", false)
		synctest.Wait()
		_ = w.unable("two", false)
		synctest.Wait()
		answers <- nil // to the try that came first
		synctest.Wait()
		if w.unable("two", false) == nil {
			t.Error("a process that was not tried is seen to do its work")
		}
		answers <- nil
		synctest.Wait()
		if err := w.unable("two", false); err != nil {
			t.Error(err)
		}
		w.close()
	})
}
