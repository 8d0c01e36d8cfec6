package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Before is the version that an upgrade begins at.
const Before = "7294cfd"

// ErrNoHistory is wrapped where the repository's history is not there.
var ErrNoHistory = errors.New("the commit is not in this clone: git fetch --unshallow")

// BuildBefore builds holdfast as it was at Before, once for each machine, and returns its path.
func BuildBefore(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "lab", ".bin", "holdfast-"+Before)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "hf-before-")
	if err != nil {
		return "", fmt.Errorf("build %s: %w", Before, err)
	}
	defer os.RemoveAll(dir)
	// A work tree would be another one of the repository's; the files are enough.
	unpack := fmt.Sprintf("git -C '%s' archive %s | tar -x -C '%s'", root, Before, dir)
	if out, err := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", unpack).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", Before, ErrNoHistory, out)
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", path}, quick.args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), quick.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", Before, err, out)
	}
	return path, nil
}

// Use has another binary started the next time, and used for verbs.
func (s *Sidecar) Use(binary string) { s.binary, s.path = binary, binary }
