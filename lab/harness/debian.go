package harness

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// Debian finds a program of Debian's: where the gate unpacks it, or on PATH.
func Debian(program, pkg string) (path string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	for _, place := range []string{filepath.Join(root, "lab", ".bin", "debian", "usr", "bin", program), program} {
		if path, err = exec.LookPath(place); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s: install Debian's %s, or have make gate unpack it", program, pkg)
}
