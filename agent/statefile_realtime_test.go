package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/agent/registration"
)

func TestAFailedSaveLeavesTheOldStateAndNoRest(t *testing.T) {
	d := openDir(t, t.TempDir())
	m := load(t, d)
	if err := d.save(m); err != nil {
		t.Fatal(err)
	}
	t.Run("no room on the disk", func(t *testing.T) {
		cmd := exec.Command(os.Args[0], "-test.run=TestChildThatSavesWithoutRoom")
		cmd.Env = append(os.Environ(), "STATE_DIR_OF_CHILD="+d.path)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "save failed as it should") {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := load(t, d); !reflect.DeepEqual(got, m) {
			t.Errorf("%+v, want %+v", got, m)
		}
		onlyState(t, d)
	})
	t.Run("the name is taken", func(t *testing.T) {
		d := openDir(t, t.TempDir())
		if err := os.Mkdir(d.file(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := d.save(m); err == nil || !strings.HasPrefix(err.Error(), "write state: ") {
			t.Errorf("%v", err)
		}
		onlyState(t, d)
	})
	t.Run("the directory is gone", func(t *testing.T) {
		d := openDir(t, filepath.Join(t.TempDir(), "x"))
		if err := os.RemoveAll(d.path); err != nil {
			t.Fatal(err)
		}
		if err := d.save(m); err == nil || !strings.HasPrefix(err.Error(), "write state: ") {
			t.Errorf("%v", err)
		}
	})
}

// TestChildThatSavesWithoutRoom is the other process of the test above: no file of
// its may be longer than ten bytes.
func TestChildThatSavesWithoutRoom(t *testing.T) {
	path := os.Getenv("STATE_DIR_OF_CHILD")
	if path == "" {
		t.Skip("runs as a child of TestAFailedSaveLeavesTheOldStateAndNoRest")
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 10, Max: 10}); err != nil {
		t.Fatal(err)
	}
	d := &stateDir{path: path}
	if err := d.save(memory{Format: memoryFormat, Past: registration.Past{Incarnation: randomID()}, BrokerID: "the new one"}); err == nil {
		t.Fatal("saved within ten bytes")
	}
	fmt.Println("save failed as it should")
}
