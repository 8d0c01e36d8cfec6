package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// need is a program, and the packages of Debian that bring it.
type need struct{ program, packages string }

// debian installs packages, as root and where there is an apt-get.
type debian struct {
	dir     string // where servers are unpacked, so that no service of theirs is started
	updated bool
}

// unpacked are those whose installation would start a service, or bring a newer program than
// what a test asks for.
var unpacked = map[string]bool{"etcd-server": true, "nats-server": true, "prometheus": true, "prometheus-alertmanager": true,
	"docker.io": true, "containerd": true, "runc": true}

// install brings what is missing of the needs, and returns why some of it cannot be had.
func (d *debian) install(needs []need) (missing []string) {
	for _, n := range needs {
		if d.has(n) {
			continue
		}
		if err := d.bring(n); err != nil {
			missing = append(missing, fmt.Sprintf("no %s (%v)", n.program, err))
		}
	}
	return missing
}

func (d *debian) has(n need) bool {
	if strings.HasPrefix(n.packages, "etcd") { // wants Debian's release, not a newer one on PATH
		_, err := os.Stat(filepath.Join(d.dir, "usr/bin", n.program))
		return err == nil
	}
	_, err := exec.LookPath(n.program)
	return err == nil
}

func (d *debian) bring(n need) error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("no apt-get")
	}
	if !d.updated {
		if err := d.run("", "apt-get", "update", "-qq"); err != nil {
			return errors.New("package lists cannot be reached")
		}
		d.updated = true
	}
	for _, pkg := range strings.Fields(n.packages) {
		if !unpacked[pkg] {
			if err := d.run("", "apt-get", "install", "-y", "-qq", "--no-install-recommends", pkg); err != nil {
				return fmt.Errorf("install %s: %w", pkg, err)
			}
			continue
		}
		// The owner of the directory need not be the packager's own user.
		if err := errors.Join(os.MkdirAll(d.dir, 0o755), d.run(d.dir, "sh", "-c", fmt.Sprintf("apt-get download -qq %s && dpkg -x %s_*.deb . && rm %s_*.deb", pkg, pkg, pkg))); err != nil {
			return fmt.Errorf("unpack %s: %w", pkg, err)
		}
	}
	if !d.has(n) {
		return fmt.Errorf("%s brings none", n.packages)
	}
	return nil
}

func (d *debian) run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(essence(string(out), 2), " "))
	}
	return nil
}
