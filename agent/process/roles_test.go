package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	patience = time.Minute // for a state, never a claim: a busy machine stands still for seconds
	roleVar  = "HF_TEST_ROLE"
)

// roles are what this test binary is when it is started as a broker.
var roles = map[string]func(){
	"polite":    func() { ready(); await(syscall.SIGTERM) },
	"stubborn":  func() { signal.Ignore(syscall.SIGTERM); ready(); time.Sleep(time.Hour) },
	"parent":    func() { begin("stubborn", nil); ready(); await(syscall.SIGTERM) },
	"daemonize": func() { daemonize(); ready() },
	"fails":     func() { exit(3) },
	"ends":      func() {},
	"leaves":    func() { begin("stubborn", nil); exit(3) }, // somebody in its group
	"signals":   signals,
	"environ":   environ,
	"sidecar":   sidecar,
	"reaper":    reaper,
}

var exit = os.Exit

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		roles[role]()
		exit(0)
	}
	exit(m.Run())
}

// ready tells so on the standard output, or by a file.
func ready() {
	if path := os.Getenv("HF_TEST_READY"); path != "" {
		say(path, strconv.Itoa(os.Getpid()))
		return
	}
	fmt.Println("ready")
}

// say writes a file in one step.
func say(path, what string) {
	err := os.WriteFile(path+".tmp", []byte(what), 0o600)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		fmt.Println(err)
		exit(1)
	}
}

func await(sig os.Signal) { c := make(chan os.Signal, 1); signal.Notify(c, sig); <-c }

// begin starts a process of another role, tells its pid, and returns when it is ready.
func begin(role string, attr *syscall.SysProcAttr) int {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVar+"="+role, "HF_TEST_READY=")
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Println(err)
		exit(1)
	}
	bufio.NewScanner(out).Scan()
	if path := os.Getenv("HF_TEST_MEMBER"); path != "" {
		say(path, strconv.Itoa(cmd.Process.Pid))
	} else {
		fmt.Println("member", cmd.Process.Pid)
	}
	return cmd.Process.Pid
}

// daemonize leaves a process of a session of its own behind, and its pid in a file.
func daemonize() {
	pid := begin("stubborn", &syscall.SysProcAttr{Setsid: true})
	if err := os.WriteFile(os.Getenv("HF_TEST_PIDFILE"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		fmt.Println(err)
		exit(1)
	}
}

// broker starts this binary in a role and in a process group of its own, and returns
// when it is ready. member is the pid that a "parent" told of.
func broker(t *testing.T, role string, env ...string) (cmd *exec.Cmd, member int) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), roleVar+"="+role, "GORACE=atexit_sleep_ms=0"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_, _ = cmd.Process.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return cmd, member
		}
		fmt.Sscanf(lines.Text(), "member %d", &member)
	}
	t.Fatalf("%s was never ready", role)
	return nil, 0
}

func target(t *testing.T, pid int) Target {
	t.Helper()
	x, err := TargetOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func pidFile(t *testing.T, pid int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broker.pid")
	if err := os.WriteFile(path, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits until ok holds, within the bound.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
