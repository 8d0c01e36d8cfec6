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
	}
	steady := []look{{0, 1, 10}, {5, 1, 11}, {10, 1, 12}, {20, 1, 13}}
	for name, row := range map[string]struct {
		looks []look
		lost  bool
	}{
		"it goes on":                         {append(steady, look{30, 1, 14}, look{49, 1, 15}), false},
		"an isolated leader":                 {append(steady, look{39, 1, 13}, look{40, 1, 13}), true},
		"19 s":                               {append(steady, look{39, 1, 13}), false},
		"it applied never so often":          {[]look{{0, 1, 10}, {60, 1, 10}, {70, 1, 11}, {95, 1, 11}}, false},
		"a follower without a leader":        {[]look{{0, 1, 10}, {1, 0, 10}, {20, 0, 10}}, true},
		"an election":                        {[]look{{0, 1, 10}, {1, 0, 10}, {19, 0, 10}, {20, 2, 10}, {39, 0, 10}}, false},
		"never a leader":                     {[]look{{0, 0, 10}, {60, 0, 10}}, false},
		"healed":                             {[]look{{0, 1, 10}, {1, 0, 10}, {30, 0, 10}, {31, 1, 11}}, false},
		"silence is none":                    {append(steady, look{30, 1, 14}), false},
		"another process, which had no look": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var q quorum
			for _, l := range row.looks {
				q.saw(&danubepb.ClusterStatusResponse{LeaderId: l.leader, LastApplied: l.applied}, t0, t0.Add(time.Duration(l.second)*time.Second))
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
