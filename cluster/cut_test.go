package cluster

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

func TestANoteOfACutThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	from := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	unread := func(value string) *Cut { return &Cut{Malformed: fmt.Sprintf("%q at key /cluster/members/n0", value)} }
	note := &Cut{From: from, Until: from.Add(30 * time.Second), Revision: 9}
	const times = `"from":"2026-11-20T12:00:00Z","until":"2026-11-20T12:00:30Z"`
	for _, c := range []struct {
		name, cut string
		want      *Cut // nil: none
	}{
		{"none", "", nil},
		{"null", `,"cut":null`, nil},
		{"a note", `,"cut":{` + times + `,"revision":9}`, note},
		{"with fields that are not known", `,"cut":{` + times + `,"revision":9,"why":"x"}`, note},
		{"of a newer format", `,"cut":{"format":2,"revision":9}`, unread(`{"format":2,"revision":9}`)},
		{"without a revision", `,"cut":{` + times + `}`, unread(`{` + times + `}`)},
		{"with a time that is none", `,"cut":{"from":"noon","revision":9}`, unread(`{"from":"noon","revision":9}`)},
		{"of another shape", `,"cut":"yes"`, unread(`"yes"`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, malformed := memberOf(&KV{Key: "/cluster/members/n0", Value: []byte(`{"era":3,"incarnation":"i"` + c.cut + `}`)})
			if m == nil || m.Era != 3 {
				t.Fatalf("the record is %+v, malformed %q", m, malformed)
			}
			if (m.Cut == nil) != (c.want == nil) || m.Cut != nil && *m.Cut != *c.want {
				t.Errorf("the note is %+v, want %+v", m.Cut, c.want)
			}
			again, err := json.Marshal(m.Cut.kept())
			if err != nil || (string(again) == "null") != (c.want == nil || c.want.Malformed != "") {
				t.Errorf("it is written again as %s, %v", again, err)
			}
		})
	}
}
