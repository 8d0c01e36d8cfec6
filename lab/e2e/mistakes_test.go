package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"holdfast/lab/harness"
)

// mistake is one that operators make: a command, what it says and how it ends.
type mistake struct {
	name string
	// given prepares what the row needs beside the shared etcd and broker, and names it with set. nil: nothing.
	given func(w *world)
	file  string // of settings in YAML; {file} is its path
	env   []string
	// command is the verb and what follows it, in words. What stands in braces is replaced here and in
	// all other texts of the row. {settings} are those of a sidecar that works; what follows them wins.
	command string
	exit    int
	// message is in one line: what, where, what to do next.
	message string
	// lasts: the command does not end by itself. It is ended when it has said the message.
	lasts bool
}

// mistakes is the whole table. Each file of rows has its own.
func mistakes() []mistake {
	return slices.Concat(processMistakes, etcdMistakes, topicMistakes)
}

// world is what a row plays in: its own keys of the shared etcd, and an empty directory, {dir}.
// The state directory {state} is not made yet. {etcd}, {admin} and {monitor} are the URLs of
// the shared etcd and broker, {etcd-port} is the former without its scheme, {data} where the broker has its data.
type world struct {
	*stand
	dir   string
	names []string // for strings.NewReplacer
}

// set names a value that the texts of the row have in braces.
func (w *world) set(name string, value any) {
	w.names = append(w.names, "{"+name+"}", fmt.Sprint(value))
}

// say fills in what stands in braces.
func (w *world) say(text string) string { return strings.NewReplacer(w.names...).Replace(text) }

// sharedBroker is a NATS server called n1, for rows that do nothing to it.
var sharedBroker = sync.OnceValues(func() (*harness.NATS, error) {
	if _, err := sharedEtcd(); err != nil {
		return nil, err
	}
	return sharedLab.StartNATS(context.Background(), harness.NATSOptions{Name: "n1"})
})

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{stand: &stand{T: t, ctx: t.Context(), lab: harness.ForTest(t)}}
	w.dir = filepath.Join(w.lab.Dir, "row") // t.TempDir is too long for a socket
	err := os.Mkdir(w.dir, 0o700)
	w.ok(err)
	w.etcd, w.flags, err = shareEtcd(w.lab)
	w.ok(err)
	n, err := sharedBroker()
	w.ok(err)
	w.set("dir", w.dir)
	w.set("state", filepath.Join(w.dir, "state"))
	w.set("file", filepath.Join(w.dir, "holdfast.yaml"))
	w.set("etcd", w.etcd.Endpoint())
	w.set("admin", n.URL())
	w.set("monitor", n.MonitorURL())
	w.set("data", n.StoreDir)
	w.set("etcd-port", strings.TrimPrefix(w.etcd.Endpoint(), "http://"))
	return w
}

// play runs the command to its end, and returns the lines of both its outputs.
func (w *world) play(m mistake) (lines []string, exit int) {
	w.Helper()
	settings := append([]string{"--driver", "nats", "--broker-admin", "{admin}", "--nats-monitor", "{monitor}", "--etcd-endpoints", "{etcd}",
		"--state-dir", "{state}", "--probe-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0", "--log-level", "warn", "--log-format", "text"}, w.flags...)
	args := strings.Fields(w.say(strings.ReplaceAll(m.command, "{settings}", strings.Join(settings, " "))))
	if m.file != "" {
		w.ok(os.WriteFile(filepath.Join(w.dir, "holdfast.yaml"), []byte(w.say(m.file)), 0o600))
	}
	bin, err := harness.Build(harness.Holdfast)
	w.ok(err)
	out, in, err := os.Pipe()
	w.ok(err)
	defer out.Close()
	ctx, cancel := context.WithTimeout(w.ctx, bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = in, in, os.Environ(), w.dir
	for _, v := range m.env {
		cmd.Env = append(cmd.Env, w.say(v))
	}
	err = cmd.Start()
	in.Close()
	w.ok(err)
	for s := bufio.NewScanner(out); s.Scan(); {
		lines = append(lines, s.Text())
		if m.lasts && strings.Contains(unquoted(s.Text()), w.say(m.message)) {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	_ = cmd.Wait() // the exit code says it
	if ctx.Err() != nil {
		w.Fatalf("%s did not end within %v, said\n%s", m.command, bound, strings.Join(lines, "\n"))
	}
	return lines, cmd.ProcessState.ExitCode()
}

// unquoted is a line of the log as people read it.
func unquoted(line string) string { return strings.ReplaceAll(line, `\"`, `"`) }

// noise is what no mistake may bring forth beside its message.
var noise = regexp.MustCompile(`level=ERROR|^panic: |^fatal error: |^goroutine \d`)

// Whoever makes a mistake reads in one line what is wrong, where, and what to do next.
func TestEachMistakeIsToldInOneLineThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, m := range mistakes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if m.given != nil {
				m.given(w)
			}
			lines, exit := w.play(m)
			if first := unquoted(lines[0]); exit != 0 && strings.HasPrefix(m.command, "run ") && !strings.Contains(first, w.say(m.message)) {
				t.Errorf("before the message: %s", first)
			}
			told, failures := 0, 0
			for _, line := range lines {
				// What fails says why at its end; its log may have said so before.
				logged := strings.HasPrefix(line, "time=") && exit != 0
				said := strings.Contains(unquoted(line), w.say(m.message)) && !logged
				if said {
					told++
				} else if noise.MatchString(line) {
					t.Errorf("beside the message: %s", line)
				}
				if strings.HasPrefix(line, "holdfast: ") {
					failures++
				}
			}
			if exit != m.exit || told != 1 || exit != 0 && failures != 1 {
				t.Errorf("%s: exit code %d, want %d, and once\n%s\nsaid:\n%s", w.say(m.command), exit, m.exit, w.say(m.message), strings.Join(lines, "\n"))
			}
		})
	}
}
