package image

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// authorities is where Debian has the public ones; both the builder and the image do.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// importBuilder makes a base for the build stage out of this host: Go, make, bash, two
// programs of coreutils, and a directory in the place of the module proxy.
func importBuilder(t *testing.T, d *daemon, name string) {
	t.Helper()
	modules := moduleProxy(t)
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(writeBuilder(writer, modules)) }()
	_, err := d.docker(t.Context(), reader, "import", "--platform", "linux/"+runtime.GOARCH,
		"--change", "ENV PATH=/usr/local/go/bin:/bin HOME=/root GOPROXY=file:///modules GOSUMDB=off", "-", name)
	reader.Close()
	if err != nil {
		t.Fatal(err)
	}
}

// moduleProxy fills a directory with the root's modules, from what this host has already.
func moduleProxy(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	here, err := goEnv("GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := goEnv("GOPROXY")
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOFLAGS=-modcacherw",
		"GOPROXY=file://"+filepath.Join(here, "cache", "download")+","+proxy)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gather modules: %v\n%s", err, out)
	}
	return filepath.Join(cache, "cache", "download")
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func writeBuilder(to io.Writer, modules string) error {
	w := &image{tar.NewWriter(to), map[string]bool{}}
	goroot, err := goEnv("GOROOT")
	if err != nil {
		return err
	}
	if err := w.dir("tmp", 0o1777); err != nil {
		return err
	}
	for from, at := range map[string]string{
		goroot + "/bin": "usr/local/go/bin", goroot + "/src": "usr/local/go/src", goroot + "/VERSION": "usr/local/go/VERSION",
		goroot + "/go.env": "usr/local/go/go.env", goroot + "/pkg/tool": "usr/local/go/pkg/tool", goroot + "/pkg/include": "usr/local/go/pkg/include",
		authorities: strings.TrimPrefix(authorities, "/"), modules: "modules",
	} {
		if err := w.tree(from, at); err != nil {
			return err
		}
	}
	for _, name := range []string{"bash", "make", "install", "cp", "cat"} {
		if err := w.program(name, "bin/"+name); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/sh", Linkname: "bash"}); err != nil {
		return err
	}
	return w.Close()
}

// image is a root directory as it is written, each name once.
type image struct {
	*tar.Writer
	has map[string]bool
}

func (w *image) dir(at string, mode int64) error {
	if w.has[at] {
		return nil
	}
	w.has[at] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: at + "/", Mode: mode})
}

// file copies what a path leads to.
func (w *image) file(from, at string) error {
	if w.has[at] {
		return nil
	}
	w.has[at] = true
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: int64(info.Mode().Perm()), Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// tree copies a file, or a directory without what only tests read.
func (w *image) tree(from, at string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := at + strings.TrimPrefix(path, from)
		switch {
		case e.IsDir() && e.Name() == "testdata":
			return fs.SkipDir
		case e.IsDir():
			return w.dir(target, 0o755)
		case strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".lock"):
			return nil
		}
		return w.file(path, target)
	})
}

var library = regexp.MustCompile(`/[^ ]+\.so[^ ]*`)

// program copies a program of this host, with the libraries that it is linked with.
func (w *image) program(name, as string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	libraries, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil && !strings.Contains(string(libraries), "not a dynamic executable") {
		return fmt.Errorf("libraries of %s: %w: %s", path, err, libraries)
	}
	for _, l := range library.FindAllString(string(libraries), -1) {
		if err := w.file(l, strings.TrimPrefix(l, "/")); err != nil {
			return err
		}
	}
	return w.file(path, as)
}
