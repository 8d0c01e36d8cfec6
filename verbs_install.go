package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func installVerb() *verb {
	return &verb{
		name:  "install",
		args:  "FILE",
		short: "copy this program to a file, for a container without cp",
		long: "Writes this program to FILE, at once or not at all. An init container of a pod does it, so that\n" +
			"the broker's container, whose image knows nothing of Holdfast, can run 'FILE gate' before it starts\n" +
			"and 'FILE drain' before it stops.",
		do: func(_ context.Context, v *verb, io streams, args []string) error {
			file, err := v.oneArg(args)
			if err != nil {
				return err
			}
			if err := install(file); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(io.out, "installed %s (%s)\n", file, version()); err != nil {
				return fmt.Errorf("print answer: %w", err)
			}
			return nil
		},
	}
}

// install copies the running program to file. Whoever looks at file sees what was there
// before, or all of it.
func install(file string) (err error) {
	from, err := os.Open("/proc/self/exe") // its own path may have been replaced meanwhile
	if err != nil {
		return fmt.Errorf("install: open this program: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(file), ".holdfast-*")
	if err != nil {
		return fmt.Errorf("install %s: %w: give a file in a directory that can be written", file, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("install %s: %w", file, errors.Join(err, os.Remove(to.Name())))
		}
	}()
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(0o555)
	}
	// Closed before it is renamed: a file that is open for writing cannot be executed.
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), file)
}
