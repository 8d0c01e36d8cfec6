package harness

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// Debian finds a program of Debian's: on PATH, or where .ci/run unpacks it.
func Debian(program, pkg string) (path string, err error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	if path, err = exec.LookPath(filepath.Join(root, "lab", ".bin", "debian", "usr", "bin", program)); err != nil {
		return "", fmt.Errorf("no %s: install Debian's %s, or have .ci/run unpack it", program, pkg)
	}
	return path, nil
}
