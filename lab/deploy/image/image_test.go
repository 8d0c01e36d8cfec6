package image

import (
	"archive/tar"
	"debug/elf"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
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
	// largest is what the image may weigh: the program, which may have 25 MB, and public authorities.
	largest = 26_000_000
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

// What the program embeds is among what it is built from, in the image too.
func TestNothingThatIsEmbeddedIsIgnored(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", "{{range .EmbedFiles}}{{.}} {{end}}", ".")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("%q, %v", out, err)
	}
	for file := range strings.FieldsSeq(string(out)) {
		if !strings.Contains(string(ignored), "\n!"+file+"\n") {
			t.Errorf(".dockerignore leaves %s out, which is embedded", file)
		}
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
	// The runbooks put `kubectl exec POD -c holdfast --` in front of `holdfast …`: the PATH that a
	// container runtime gives an image without one does not have /.
	if !slices.Equal(i.Config.Entrypoint, []string{"/holdfast"}) || !slices.Contains(i.Config.Env, "PATH=/") {
		t.Errorf("entry point %q, environment %q: verbs are its arguments", i.Config.Entrypoint, i.Config.Env)
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
