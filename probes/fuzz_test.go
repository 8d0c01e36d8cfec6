package probes

import "testing"

func FuzzProcessLines(f *testing.F) {
	f.Add([]byte("42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0"))
	f.Add([]byte(") ("))
	f.Add([]byte("1 () Z"))
	f.Fuzz(func(t *testing.T, line []byte) {
		p, err := parseStat(line)
		if err == nil && p.ended() && p.alive() {
			t.Fatalf("%q is alive and has ended", line)
		}
	})
}
