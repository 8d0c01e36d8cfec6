package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
)

func installVerb() *cli.Command {
	return verb("install", func(c *cli.Context) error {
		file := c.Args().First()
		if err := install(file); err != nil {
			return err
		}
		out(c).line("installed %s (%s)", file, version())
		return nil
	})
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
