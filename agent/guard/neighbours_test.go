package guard

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"holdfast/agent/lease"
)

// serving is a stage whose broker has a name, and holds the socket at the address; port 0: any.
func serving(t *testing.T, name, addr string) (s *stage, at string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.Args[0], cmd.ExtraFiles = name, []*os.File{file}
	return begin(t, cmd), l.Addr().String()
}

// A broker of the same name on the host is another's, whatever becomes of ours and of the sidecar.
func TestAGuardLeavesABrokerOfTheSameNameAlone(t *testing.T) {
	const anywhere = "127.0.0.1:0"
	for row, first := range map[string]bool{"that was there first": true, "that was started later": false} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("one %s, the sidecar is started again: %t", row, restarted), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprintf("hf-guard-%d-%t-%t", os.Getpid(), first, restarted)
				var beside *stage
				if first {
					beside, _ = serving(t, name, anywhere)
				}
				s, at := serving(t, name, anywhere)
				untouched := func(when string) {
					t.Helper()
					if beside.ended() || beside.frozen() {
						t.Fatalf("%sthe neighbour was signaled %s", violation, when)
					}
				}
				sidecar := func() *exec.Cmd {
					cmd := exec.Command("/proc/self/exe")
					cmd.Env = append(os.Environ(), "GUARD_TEST_SIDECAR="+s.dir, "GUARD_TEST_NAME="+name, "GUARD_TEST_ADMIN="+at)
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
					return cmd
				}
				standing := func(want func(p *page) bool) *page {
					t.Helper()
					var found *page
					s.await("the guard", func() bool {
						p, _, err := openPage(s.guard(), pageFD)
						found = p
						return err == nil && want(p)
					})
					return found
				}
				old := sidecar()
				p := standing(func(p *page) bool {
					o, n, err := p.post()
					return err == nil && p.standing.Load() && o.Target == s.target() && p.held.Load() == n
				})
				if !first {
					beside, _ = serving(t, name, anywhere)
				}
				old.Process.Kill()
				old.Wait()
				s.broker.Process.Kill()
				s.awaitEnd()
				if restarted {
					owner := p.owner.Load()
					next := sidecar()
					s.await("the next sidecar's word", func() bool { return p.owner.Load() != owner && p.stopAt.Load() > int64(lease.BootClock()) })
					time.Sleep(relook) // it looks for the broker meanwhile, and nothing may happen
					untouched("beside the next sidecar")
					next.Process.Kill()
					next.Wait()
				}
				s.await("the deadline", func() bool { return p.deadline.Load() < int64(lease.BootClock()) })
				time.Sleep(4 * SeekEvery) // this long nothing may happen
				untouched("behind the deadline")
				again, _ := serving(t, name, at)
				s.await("what is done to the broker that is started again", again.frozenOrEnded)
				time.Sleep(2 * SeekEvery) // this long nothing may happen
				untouched("beside the broker that was started again")
				if pid := s.guard(); pid != 0 {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			})
		}
	}
}
