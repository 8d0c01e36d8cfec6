package danube

import (
	"testing"
	"time"

	"holdfast/brokerapi/danube/danubepb"
)

func TestAQuorumIsLostWhenNobodyLeadsOrNothingIsAppliedForTwentySeconds(t *testing.T) {
	t0 := time.Unix(1000, 0)
	type look struct {
		second          int
		leader, applied uint64
		unwatched       bool // nobody asked since the look before
	}
	steady := []look{{second: 0, leader: 1, applied: 10}, {second: 5, leader: 1, applied: 11}, {second: 10, leader: 1, applied: 12}, {second: 20, leader: 1, applied: 13}}
	for name, row := range map[string]struct {
		looks []look
		lost  bool
	}{
		"it goes on":                         {append(steady, look{30, 1, 14, false}, look{49, 1, 15, false}), false},
		"an isolated leader":                 {append(steady, look{39, 1, 13, false}, look{40, 1, 13, false}), true},
		"19 s":                               {append(steady, look{39, 1, 13, false}), false},
		"it applied never so often":          {[]look{{0, 1, 10, false}, {60, 1, 10, false}, {70, 1, 11, false}, {95, 1, 11, false}}, false},
		"a follower without a leader":        {[]look{{0, 1, 10, false}, {1, 0, 10, false}, {20, 0, 10, false}}, true},
		"an election":                        {[]look{{0, 1, 10, false}, {1, 0, 10, false}, {19, 0, 10, false}, {20, 2, 10, false}, {39, 0, 10, false}}, false},
		"never a leader":                     {[]look{{0, 0, 10, false}, {60, 0, 10, false}}, false},
		"healed":                             {[]look{{0, 1, 10, false}, {1, 0, 10, false}, {30, 0, 10, false}, {31, 1, 11, false}}, false},
		"it was paused":                      {append(steady, look{41, 0, 13, true}), false},
		"it was paused, and lost it":         {append(steady, look{41, 0, 13, true}, look{61, 0, 13, false}), true},
		"silence is none":                    {append(steady, look{30, 1, 14, false}), false},
		"another process, which had no look": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var q quorum
			last := look{}
			for _, l := range row.looks { // asked each second, and what it said stays until it says another thing
				for s := last.second + 1; s < l.second && !l.unwatched; s++ {
					q.saw(&danubepb.ClusterStatusResponse{LeaderId: last.leader, LastApplied: last.applied}, t0, t0.Add(time.Duration(s)*time.Second))
				}
				q.saw(&danubepb.ClusterStatusResponse{LeaderId: l.leader, LastApplied: l.applied}, t0, t0.Add(time.Duration(l.second)*time.Second))
				last = l
			}
			if why := q.lost(); (why != "") != row.lost {
				t.Errorf("lost: %q", why)
			}
			q.saw(&danubepb.ClusterStatusResponse{}, t0.Add(time.Hour), t0.Add(time.Hour)) // another process
			if why := q.lost(); why != "" {
				t.Errorf("its next start: %s", why)
			}
		})
	}
}
