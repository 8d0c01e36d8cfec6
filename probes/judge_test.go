package probes

import "testing"

func TestJudgeFollowsItsTable(t *testing.T) {
	const rise, fall = 2, 3
	tests := []struct {
		name   string
		events string // s success, f failure, L loss, k skipped
		want   string // the verdict after each event: u up, d down, ? unknown
	}{
		{"first success is enough", "s", "u"},
		{"fall failures from the beginning", "fff", "??d"},
		{"a success among first failures", "ffs", "??u"},
		{"up until fall failures in a row", "sfff", "uuud"},
		{"a success in between starts the count again", "sffsffsfff", "uuuuuuuuud"},
		{"down until rise successes in a row", "fffss", "??ddu"},
		{"a failure in between starts the rise again", "fffsfss", "??ddddu"},
		{"loss of an up broker, answering again", "sLs", "u?u"},
		{"loss of an up broker, failing", "sLfff", "u???d"},
		{"loss voids earlier failures", "sffLff", "uuu???"},
		{"loss before any result", "Ls", "?u"},
		{"loss of a down broker does not forgive the rise", "fffLss", "??d??u"},
		{"a broker that crashes after each first answer stays not up", "fffsLsLsL", "??dd?????"},
		{"after it came up the rise is paid", "fffssLs", "??ddu?u"},
		{"two losses", "sLLs", "u??u"},
		{"what says nothing of it leaves it up", "skkkk", "uuuuu"},
		{"and leaves it unknown", "kkk", "???"},
		{"and ends a silence", "fffksL", "??d???"},
		{"and starts the count of failures again", "sffkffkfff", "uuuuuuuuud"},
	}
	letters := map[Verdict]byte{Up: 'u', Down: 'd', Unknown: '?'}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var j judge
			var got []byte
			for _, e := range tt.events {
				switch e {
				case 'L':
					j.lose()
				case 'k':
					j.skip()
				default:
					j.observe(e == 's', rise, fall)
				}
				got = append(got, letters[j.verdict])
			}
			if string(got) != tt.want {
				t.Errorf("%s: got %s, want %s", tt.events, got, tt.want)
			}
		})
	}
}

func TestRiseAndFallBelowOneCountAsOne(t *testing.T) {
	var j judge
	if j.observe(false, 0, -1); j.verdict != Down {
		t.Errorf("after one failure: %v", j.verdict)
	}
	if j.observe(true, 0, -1); j.verdict != Up {
		t.Errorf("after one success: %v", j.verdict)
	}
}
