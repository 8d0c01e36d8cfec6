package guard

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/lease"
)

// formerPage is what a guard of the former format shares, as far as it matters here.
type formerPage struct {
	magic, stopAt, killAt, deadline, heardAt uint64
	_                                        [4096 - 40]byte // from formerGoodbye on
}

// formerGoodbye is where the four bytes of its goodbye stand.
const formerGoodbye = 40

// formerGuard is a guard of the former format that hears of nothing but its goodbye.
func formerGuard() {
	mem, err := unix.Mmap(pageFD, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		os.Exit(1)
	}
	for g := mem[formerGoodbye:]; g[0]|g[1]|g[2]|g[3] == 0; {
		time.Sleep(Look / 50)
	}
	os.Exit(0)
}

// newFormer runs one for the stage's state directory with a word.
func newFormer(s *stage, word formerPage) *exec.Cmd {
	s.Helper()
	lock, err := os.OpenFile(filepath.Join(s.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		s.Fatal(err)
	}
	fd, err := unix.MemfdCreate(pageName, unix.MFD_CLOEXEC)
	if err != nil {
		s.Fatal(err)
	}
	page := os.NewFile(uintptr(fd), pageName)
	defer page.Close()
	if err := binary.Write(page, binary.NativeEndian, word); err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "GUARD_TEST_FORMER=1")
	cmd.ExtraFiles = []*os.File{page, lock}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { cmd.Process.Kill() })
	if _, err := lock.WriteAt(fmt.Appendf(nil, "%-10d\n", cmd.Process.Pid), 0); err != nil {
		s.Fatal(err)
	}
	return cmd
}

func TestAGuardOfTheFormerFormatIsReplacedByOneWithItsWord(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	v := validFor(time.Hour)
	stopAt, killAt := Points(v)
	former := newFormer(s, formerPage{magic: formerMagic, stopAt: uint64(stopAt), killAt: uint64(killAt), deadline: uint64(v.Deadline()), heardAt: uint64(v.SentAt)})
	c := s.guarded("")
	if err := former.Wait(); err != nil {
		t.Errorf("the former guard: %v", err)
	}
	if o := c.page.orders(); o.StopAt != stopAt || o.KillAt != killAt || lease.Instant(c.page.deadline.Load()) != v.Deadline() {
		t.Errorf("the word is %+v, not %v and %v", o, stopAt, killAt)
	}
	if news := c.News(); len(news) == 0 || news[0].What != TakenOver {
		t.Errorf("%+v", news)
	}
}

func TestAGuardOfAnUnknownFormatIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	former := newFormer(s, formerPage{magic: pageMagic + 1})
	if _, err := Open(Settings{Dir: s.dir}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d) cannot be taken over", former.Process.Pid)) {
		t.Errorf("%v", err)
	}
	former.Process.Kill()
	if err := former.Wait(); err == nil {
		t.Error("it was told to end")
	}
}
