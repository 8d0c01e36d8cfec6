package agent

import "github.com/xrash/smetrics"

// Nearest returns the candidate that a person most likely meant by name, or empty if none
// is near.
func Nearest(name string, candidates []string) string {
	best, most := "", 0.87
	for _, c := range candidates {
		if likeness := smetrics.JaroWinkler(name, c, 0.7, 4); likeness > most {
			best, most = c, likeness
		}
	}
	return best
}
