package recognize

import "holdfast/agent/process"

// Past is a process of the broker that this sidecar, or one before it, recognized.
type Past struct {
	process.Target
	Instance string `json:"instance"`         // that it answered with
	Space    string `json:"space"`            // in which the target means that process
	Strict   bool   `json:"strict,omitempty"` // see probes.Finder
}

// Here reports whether the process can be told from all others.
func (p *Past) Here() bool {
	if p == nil {
		return false
	}
	space, err := process.Space()
	return err == nil && space == p.Space
}
