package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Program is one of the programs that the lab can build.
type Program string

// The programs of the lab.
const (
	Holdfast     Program = "holdfast"
	EtcdServer   Program = "etcd"
	NATSServer   Program = "nats-server"
	DanubeServer Program = "danubed" // the stand-in for a Danube broker
	// ReferenceBroker keeps the HTTP contract; see lab/reference.
	ReferenceBroker Program = "reference"
	PulsarBroker    Program = "pulsar" // a stand-in, see package standin/pulsar
)

type recipe struct {
	dir  string // below the root of the repository
	env  []string
	args []string // of go build, without -o
}

var recipes = map[Program]recipe{
	Holdfast: {
		dir:  ".",
		env:  []string{"CGO_ENABLED=0"},
		args: []string{"-tags", "grpcnotrace,urfave_cli_no_docs", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "."},
	},
	EtcdServer:      {dir: "lab", args: []string{"go.etcd.io/etcd/server/v3"}},
	ReferenceBroker: {dir: "lab", args: []string{"./reference/cmd"}},
	NATSServer:      {dir: "lab", args: []string{"github.com/nats-io/nats-server/v2"}},
	DanubeServer: {
		dir:  "lab",
		env:  []string{"CGO_ENABLED=0"},
		args: []string{"-buildvcs=false", "holdfast/lab/standin/danube/danubed"},
	},
	PulsarBroker: {dir: "lab", args: []string{"./standin/pulsar/cmd"}},
}

var (
	buildMu sync.Mutex
	built   = map[Program]string{}
)

// BinaryVariable may name a holdfast to use instead of building one, such as a
// release that is to be tried in the lab.
const BinaryVariable = "HOLDFAST_LAB_BINARY"

// QuickVariable, if it is set, has holdfast built like its tests, with libraries that those
// have compiled: a minute of a processor sooner than what is shipped, and larger.
const QuickVariable = "HOLDFAST_LAB_QUICK"

var quick = recipe{dir: ".", env: []string{"CGO_ENABLED=0"}, args: []string{"-buildvcs=false", "-ldflags", "-s -w", "."}}

// Build builds the program into lab/.bin, once for each process that asks, and
// returns its path. Processes that ask at the same time take turns.
func Build(p Program) (path string, err error) {
	if path := os.Getenv(BinaryVariable); path != "" && p == Holdfast {
		return path, nil
	}
	buildMu.Lock()
	defer buildMu.Unlock()
	if path := built[p]; path != "" {
		return path, nil
	}
	r, ok := recipes[p]
	if !ok {
		return "", fmt.Errorf("build %s: no such program in the lab", p)
	}
	if p == Holdfast && os.Getenv(QuickVariable) != "" {
		r = quick
	}
	root, err := Root()
	if err != nil {
		return "", fmt.Errorf("build %s: %w", p, err)
	}
	bin := filepath.Join(root, "lab", ".bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("build %s: %w", p, err)
	}
	unlock, err := lockFile(filepath.Join(bin, "lock"))
	if err != nil {
		return "", fmt.Errorf("build %s: %w", p, err)
	}
	defer unlock()

	path = filepath.Join(bin, string(p))
	cmd := exec.Command("go", append([]string{"build", "-o", path}, r.args...)...)
	cmd.Dir = filepath.Join(root, r.dir)
	cmd.Env = append(os.Environ(), r.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", p, err, out)
	}
	built[p] = path
	return path, nil
}

// Root is the directory of the repository, found upwards from the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module holdfast\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the repository: no go.mod of module holdfast here or above; run this inside it")
		}
	}
}

func lockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f.Close, nil
}
