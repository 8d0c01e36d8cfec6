package guard

import "os"

// durable is the standard error if it can be inherited by a process that outlives us:
// a file or a socket, such as the journal's. Whoever reads a pipe or a terminal waits
// for, or takes with it, everybody who has it.
func durable(f *os.File) *os.File {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() && info.Mode()&os.ModeSocket == 0 {
		return nil // the null device
	}
	return f
}
