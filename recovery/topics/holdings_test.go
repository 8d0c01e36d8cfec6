package topics

import (
	"testing"

	"holdfast/recovery"
)

func TestWhatABrokerServesThatWasNeverRegisteredIsComparedWithTheAssignments(t *testing.T) {
	to := func(pairs ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
		}
		return m
	}
	for _, c := range []struct {
		name string
		h    recovery.Holdings
		want string
	}{
		{"nothing is served", recovery.Holdings{Any: true}, ""},
		{"its own", recovery.Holdings{Serving: []string{"/d/a"}, Assigned: to("/d/a", "n1"), Any: true}, ""},
		{"another's", recovery.Holdings{Serving: []string{"/d/a"}, Assigned: to("/d/a", "n2"), Any: true}, "1 assigned to others: /d/a (of n2)"},
		{"its own and another's", recovery.Holdings{Serving: []string{"/d/a"}, Assigned: to("/d/a", "n2", "/d/a", "n1"), Any: true}, ""},
		{"nobody's, where nothing is assigned", recovery.Holdings{Serving: []string{"/d/a"}}, ""},
		{"nobody's, where others have assignments", recovery.Holdings{Serving: []string{"/d/a"}, Any: true}, "1 assigned to nobody: /d/a"},
		{"many, of which the first are named", recovery.Holdings{Serving: []string{"/d/e", "/d/d", "/d/c", "/d/b", "/d/a"}, Assigned: to("/d/a", "n2"), Any: true},
			"1 assigned to others: /d/a (of n2); 4 assigned to nobody: /d/b, /d/c, /d/d, …"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.h.Strange("n1"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
