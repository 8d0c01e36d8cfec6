package process

import (
	"fmt"
	"os"
)

// Space names this boot of the host and our pid namespace: within one, a Target means the
// same process for ever.
func Space() (string, error) {
	boot, err := BootID()
	if err != nil {
		return "", err
	}
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("read the pid namespace: %w", err)
	}
	return boot + " " + pids, nil
}
