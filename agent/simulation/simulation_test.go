package simulation

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/raced"
	"holdfast/internal/testseed"
)

var (
	schedules = flag.Int("schedules", 0, "how many schedules to run; 0: 150 with -short, else 1000")
	brief     = flag.Bool("brief", false, "end at the first violation, without shrinking")
	firstSeed = flag.Uint64("seed", testseed.Value(), "the first seed")
)

// scratch is where state directories are kept: in memory if there is such a place, since
// every save is synced.
func scratch(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-simulation-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestNothingIsServedPastTheDeadlineWhateverHappens(t *testing.T) {
	n := *schedules
	switch {
	case n == 0 && raced.Enabled:
		n = 15
	case n == 0 && testing.Short():
		n = 150
	case n == 0:
		n = 1000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a quarter less work, and 15 MB more
	dir := scratch(t)
	began := time.Now()
	var next, failed, unsure atomic.Int64
	var mu sync.Mutex
	t.Run("schedules", func(t *testing.T) {
		for w := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(w), func(t *testing.T) {
				t.Parallel()
				for {
					k := next.Add(1) - 1
					if k >= int64(n) || failed.Load() >= 3 {
						return
					}
					s := draw(*firstSeed + uint64(k))
					o := run(t, s, filepath.Join(dir, fmt.Sprint(w)), testing.Verbose() && n == 1)
					if n == 1 {
						t.Logf("%s\n%s", s, strings.Join(o.Story, "\n"))
					}
					if len(o.Violations) == 0 {
						continue
					}
					if *brief {
						failed.Add(10)
						t.Errorf("%s\n%s", s, strings.Join(o.Violations, "\n"))
						return
					}
					mu.Lock()
					if report(t, s, o, filepath.Join(dir, fmt.Sprint(w))) {
						failed.Add(1)
					} else if unsure.Add(1) > 1 { // two in one run are no chance
						t.Error("violated now and then, as another schedule before it")
						failed.Add(1)
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d schedules from seed %d in %v", min(next.Load(), int64(n)), *firstSeed, time.Since(began).Round(time.Millisecond))
}
