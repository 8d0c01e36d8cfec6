package image

import (
	"archive/tar"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

const (
	builder  = "holdfast-builder:test"
	version  = "v1.2.3-test"
	revision = "0123456789abcdef0123456789abcdef01234567"
	// user is the numeric one that pods name, too.
	user = "65532"
	// largest is what the image may weigh: the program, and public authorities.
	largest = 22_000_000
)

// inspected is what the tests read of `docker image inspect`.
type inspected struct {
	Architecture, Os string
	Size             int64
	Config           struct {
		User         string
		Env          []string
		Entrypoint   []string
		Cmd          []string
		Labels       map[string]string
		Volumes      map[string]struct{}
		ExposedPorts map[string]struct{}
		Healthcheck  struct{ Test []string }
	}
}

// The runbooks put `kubectl exec POD -c holdfast --` in front of `holdfast …`: the PATH that a
// container runtime gives an image without one does not have /.
func TestTheImageFindsItsProgramByName(t *testing.T) {
	text, err := os.ReadFile("../../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(string(text), "\nFROM ${BASE}\n")
	if !strings.Contains(image, "\nENV PATH=/\n") || !strings.Contains(image, `ENTRYPOINT ["/holdfast"]`) {
		t.Errorf("want ENV PATH=/ and /holdfast in the image:\n%s", image)
	}
}

// TestTheImage builds once and looks at it from all sides: each build compiles everything.
func TestTheImage(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles everything in a container, twice")
	}
	d := startDaemon(t)
	importBuilder(t, d, builder)
	native, other := runtime.GOARCH, "arm64"
	if native == other {
		other = "amd64"
	}
	d.build(t, native)
	t.Run("says what it is", func(t *testing.T) { saysWhatItIs(t, d, native) })
	t.Run("holds nothing but the program, authorities and the place of its state", func(t *testing.T) { holdsNothingElse(t, d, native) })
	t.Run("runs with all rights taken away, and writes nothing but its state", func(t *testing.T) { runsConfined(t, d, native) })
	t.Run("works in the pods of deploy/kubernetes, and an update of them needs nobody", func(t *testing.T) { theSetWorks(t, d, tag(native)) })
	t.Run("is built for another processor without emulation", func(t *testing.T) {
		d.build(t, other)
		saysWhatItIs(t, d, other)
		holdsNothingElse(t, d, other)
	})
}

func tag(arch string) string { return "holdfast-" + arch + ":test" }

// build has no network: what is not in the base cannot be fetched.
func (d *daemon) build(t *testing.T, arch string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	d.must(t, "build", "--network=none", "--platform=linux/"+arch, "--build-arg=BUILDER="+builder,
		"--build-arg=VERSION="+version, "--build-arg=REVISION="+revision, "--tag="+tag(arch), root)
	t.Logf("built for %s in %v", arch, time.Since(start).Round(time.Second))
}

func saysWhatItIs(t *testing.T, d *daemon, arch string) {
	var all []inspected
	if err := json.Unmarshal([]byte(d.must(t, "image", "inspect", tag(arch))), &all); err != nil || len(all) != 1 {
		t.Fatalf("%d images, %v", len(all), err)
	}
	i := all[0]
	if i.Os != "linux" || i.Architecture != arch {
		t.Errorf("it is for %s/%s, want linux/%s", i.Os, i.Architecture, arch)
	}
	t.Logf("%s: %d bytes", arch, i.Size)
	if i.Size > largest {
		t.Errorf("%d bytes, more than %d", i.Size, largest)
	}
	if i.Config.User != user+":"+user {
		t.Errorf("user %q: runAsNonRoot wants a number that is not 0", i.Config.User)
	}
	for label, want := range map[string]string{"title": "holdfast", "version": version, "revision": revision, "licenses": "Apache-2.0"} {
		if got := i.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s %q, want %q", label, got, want)
		}
	}
	if want := []string{"/holdfast"}; !slices.Equal(i.Config.Entrypoint, want) {
		t.Errorf("entry point %q, want %q: verbs are its arguments", i.Config.Entrypoint, want)
	}
	if want := []string{"CMD", "/holdfast", "healthcheck"}; !slices.Equal(i.Config.Healthcheck.Test, want) {
		t.Errorf("health check %q, want %q: there is no shell", i.Config.Healthcheck.Test, want)
	}
	if _, ok := i.Config.Volumes["/var/lib/holdfast"]; !ok || len(i.Config.Volumes) != 1 {
		t.Errorf("volumes %v, want the directory of the state", i.Config.Volumes)
	}
}

// holdsNothingElse looks at every file of the image.
func holdsNothingElse(t *testing.T, d *daemon, arch string) {
	id := d.must(t, "create", "--platform=linux/"+arch, "--network=none", tag(arch))
	defer d.must(t, "rm", "--volumes", id)
	out, err := d.docker(t.Context(), nil, "export", id)
	if err != nil {
		t.Fatal(err)
	}
	// What Docker puts into every container of its own.
	its := []string{".dockerenv", "dev/", "dev/console", "dev/pts/", "dev/shm/", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "proc/", "sys/"}
	var has []string
	var program []byte
	for r := tar.NewReader(strings.NewReader(out)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(its, h.Name) {
			continue
		}
		has = append(has, h.Name)
		mode := h.FileInfo().Mode()
		if mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s gives rights: %s", h.Name, mode)
		}
		owner := h.Uid == 0 && h.Gid == 0
		if h.Name == "var/lib/holdfast/" {
			owner = h.Uid == 65532 && h.Gid == 65532
		} else if mode.Perm()&0o022 != 0 {
			t.Errorf("%s can be written by others than root: %s", h.Name, mode)
		}
		if !owner {
			t.Errorf("%s is owned by %d:%d", h.Name, h.Uid, h.Gid)
		}
		if h.Name == "holdfast" {
			if program, err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := []string{"etc/", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", "holdfast", "var/", "var/lib/", "var/lib/holdfast/"}
	slices.Sort(has)
	if !slices.Equal(has, want) {
		t.Errorf("it holds\n%q, want\n%q", has, want)
	}
	staticFor(t, program, arch)
}

func staticFor(t *testing.T, program []byte, arch string) {
	t.Helper()
	f, err := elf.NewFile(strings.NewReader(string(program)))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		t.Errorf("program for %s, want %s", f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program needs a loader, which the image has not")
		}
	}
}

// runsConfined runs the container as the strictest of pods would.
func runsConfined(t *testing.T, d *daemon, arch string) {
	lab := harness.ForTest(t)
	etcd, err := lab.StartEtcd(t.Context(), harness.EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nats, err := lab.NewNATS(harness.NATSOptions{Name: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(nats.StoreDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := nats.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	readable(t, nats.StoreDir)
	topic := "/shop/orders"
	if err := (harness.Keys{}).Assign(t.Context(), etcd.Client(), "n1", topic); err != nil {
		t.Fatal(err)
	}
	probe, web := port(t, lab), port(t, lab)
	run := []string{"run", "--detach", "--name=n1", "--network=host", "--read-only", "--cap-drop=ALL",
		"--security-opt=no-new-privileges", "--pids-limit=64", "--memory=64m",
		"--health-interval=1s", "--volume=" + nats.StoreDir + ":" + nats.StoreDir + ":ro",
		"--env=HOLDFAST_DRIVER=nats", "--env=HOLDFAST_ETCD_ENDPOINTS=" + etcd.Endpoint(),
		"--env=HOLDFAST_BROKER_ADMIN=" + nats.URL(), "--env=HOLDFAST_NATS_MONITOR=" + nats.MonitorURL(),
		fmt.Sprintf("--env=HOLDFAST_PROBE_LISTEN=127.0.0.1:%d", probe), fmt.Sprintf("--env=HOLDFAST_WEB_LISTEN=127.0.0.1:%d", web),
		tag(arch)}
	d.must(t, run...)
	defer func() {
		if t.Failed() {
			log, err := os.ReadFile(d.must(t, "inspect", "--format", "{{.LogPath}}", "n1"))
			t.Logf("%s\n%v", log, err)
		}
	}()
	healthy := func(want string) {
		t.Helper()
		err := harness.Await(t.Context(), time.Minute, "the health of the container", func(ctx context.Context) (bool, string) {
			out, err := d.docker(ctx, nil, "inspect", "--format", "{{.State.Health.Status}} {{json .State}}", "n1")
			return err == nil && strings.HasPrefix(out, want+" "), out
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	healthy("healthy")

	pid := d.must(t, "inspect", "--format", "{{.State.Pid}}", "n1")
	rightsOf(t, pid)
	writes(t, pid)
	// A program that is there to write files is refused everywhere but with the state.
	for _, at := range []string{"/x", "/etc/x", "/tmp/x", "/var/lib/x", "/holdfast", nats.StoreDir + "/x", "/proc/x", "/dev/x"} {
		if out, err := d.docker(t.Context(), nil, "exec", "n1", "/holdfast", "install", at); err == nil {
			t.Errorf("%s can be written: %s", at, out)
		}
	}
	d.must(t, "exec", "n1", "/holdfast", "install", "/var/lib/holdfast/x")

	// Without the path, as the runbooks have it.
	if out := d.must(t, "exec", "n1", "holdfast", "drain", "--reason", "test"); !strings.Contains(out, "drained") {
		t.Errorf("drain says %q", out)
	}
	healthy("unhealthy")
	d.must(t, "exec", "n1", "/holdfast", "activate")
	healthy("healthy")

	d.must(t, "stop", "--time=30", "n1")
	if code := d.must(t, "inspect", "--format", "{{.State.ExitCode}}", "n1"); code != "0" {
		t.Errorf("stopped with code %s", code)
	}
	for line := range strings.Lines(d.must(t, "diff", "n1")) {
		// Where the broker's data is mounted Docker has made directories.
		if _, at, _ := strings.Cut(strings.TrimSpace(line), " "); at != nats.StoreDir && !strings.HasPrefix(nats.StoreDir, at+"/") {
			t.Errorf("written beside the state: %s", line)
		}
	}
	reg, err := (harness.Keys{}).ReadRegistration(t.Context(), etcd.Client(), "n1")
	if err != nil || reg.CreateRevision != 0 {
		t.Errorf("after a clean stop the registration is %+v, %v", reg, err)
	}
}

// readable lets the user of the image read what the server of this test, root, has written.
func readable(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func port(t *testing.T, lab *harness.Lab) int {
	t.Helper()
	p, err := lab.Port()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// rightsOf checks whose the process is, as the kernel has it.
func rightsOf(t *testing.T, pid string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		t.Fatal(err)
	}
	none := "0000000000000000"
	for field, want := range map[string]string{
		"Uid": strings.Repeat(user+" ", 4), "Gid": strings.Repeat(user+" ", 4), "CapEff": none, "CapPrm": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2",
	} {
		_, rest, _ := strings.Cut(string(raw), "\n"+field+":")
		line, _, _ := strings.Cut(rest, "\n")
		if got := strings.Join(strings.Fields(line), " "); got != strings.TrimSpace(want) {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
}

// writes checks that of what is mounted for the process, only its state can be written.
func writes(t *testing.T, pid string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "mounts"))
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if !slices.Contains(strings.Split(f[3], ","), "ro") {
			open = append(open, f[1])
		}
	}
	// The kernel's own, whose files are root's.
	open = slices.DeleteFunc(open, func(at string) bool {
		return slices.ContainsFunc([]string{"/proc", "/dev", "/sys/fs/cgroup"}, func(its string) bool {
			return at == its || strings.HasPrefix(at, its+"/")
		})
	})
	if want := []string{"/var/lib/holdfast"}; !slices.Equal(open, want) {
		t.Errorf("mounted to be written: %q, want %q", open, want)
	}
}
