package verdict

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Name is that of the run's file, without its ending: legal in any file system.
func (r Run) Name() string {
	name := strings.Map(func(c rune) rune {
		if c == ' ' || c == '/' {
			return '-'
		}
		return c
	}, r.Row)
	return fmt.Sprintf("%s.%s.%s.%d", name, r.Manager, r.Placement, r.Number)
}

func (r Run) path(dir string) string { return filepath.Join(dir, r.Name()+".json") }

// Save writes the run into its file below dir, whole or not at all.
func (r Run) Save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	part := r.path(dir) + ".part"
	if err := os.WriteFile(part, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	return os.Rename(part, r.path(dir))
}

// Load reads the run's outcomes; false: it was not made yet.
func (r *Run) Load(dir string) (bool, error) {
	text, err := os.ReadFile(r.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("load run: %w", err)
	}
	if err := json.Unmarshal(text, r); err != nil {
		return false, fmt.Errorf("load run: %s: %w", r.path(dir), err)
	}
	return true, nil
}
