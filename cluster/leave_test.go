package cluster

import (
	"fmt"
	"testing"
	"time"
)

// What stands there and is no note that we know is told from no note, and does not hide the
// rest of the record.
func TestANoteThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	unread := func(value string) *Left { return &Left{Malformed: fmt.Sprintf("%q at key /cluster/members/n0", value)} }
	note := &Left{At: at, Epoch: 7, Instance: "p", Revision: 9}
	for _, c := range []struct {
		name, left string
		want       *Left // nil: none
	}{
		{"none", "", nil},
		{"null", `,"left":null`, nil},
		{"a note", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9}`, note},
		{"with fields that are not known", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9,"by":"x"}`, note},
		{"with its data", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9,"data":"8:1"}`, &Left{At: at, Epoch: 7, Instance: "p", Revision: 9, Data: "8:1"}},
		{"of a process that is to be stopped", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9,"stop":true}`, &Left{At: at, Epoch: 7, Instance: "p", Revision: 9, Stop: true}},
		{"of a crash", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9,"crash":true}`, &Left{At: at, Epoch: 7, Instance: "p", Revision: 9, Crash: true}},
		{"with data of another shape", `,"left":{"at":"2026-11-20T12:00:00Z","epoch":7,"data":8}`, unread(`{"at":"2026-11-20T12:00:00Z","epoch":7,"data":8}`)},
		{"of the first format", `,"left":{"format":1,"at":"2026-11-20T12:00:00Z","epoch":7,"instance":"p","revision":9}`, note},
		{"of a newer format", `,"left":{"format":2,"at":"2026-11-20T12:00:00Z","epoch":7}`, unread(`{"format":2,"at":"2026-11-20T12:00:00Z","epoch":7}`)},
		{"of another kind", `,"left":{"crash":true}`, unread(`{"crash":true}`)},
		{"without a time", `,"left":{"epoch":7}`, unread(`{"epoch":7}`)},
		{"without an epoch", `,"left":{"at":"2026-11-20T12:00:00Z"}`, unread(`{"at":"2026-11-20T12:00:00Z"}`)},
		{"with a time that is none", `,"left":{"at":"yesterday","epoch":7}`, unread(`{"at":"yesterday","epoch":7}`)},
		{"of another shape", `,"left":true`, unread(`true`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, malformed := memberOf(&KV{Key: "/cluster/members/n0", Value: []byte(`{"era":3,"incarnation":"i"` + c.left + `}`)})
			if m == nil || m.Era != 3 || m.Incarnation != "i" {
				t.Fatalf("the record is %+v, malformed %q", m, malformed)
			}
			if (m.Left == nil) != (c.want == nil) || m.Left != nil && *m.Left != *c.want {
				t.Errorf("the note is %+v, want %+v", m.Left, c.want)
			}
		})
	}
}

// Whoever left, or crashed and was noted, carries its life over; a loss begins it anew.
func TestALifeIsCountedFromItsFirstRegistration(t *testing.T) {
	for _, c := range []struct {
		m    *Member
		want int64
	}{
		{nil, 9},
		{&Member{}, 9},
		{&Member{Since: 4}, 4},
		{&Member{Left: &Left{Epoch: 7}}, 7},
		{&Member{Left: &Left{Epoch: 7}, Since: 4}, 4},
		{&Member{Left: &Left{Malformed: "?"}}, 9},
	} {
		if got := c.m.LifeSince(9); got != c.want {
			t.Errorf("%+v: since %d, want %d", c.m, got, c.want)
		}
	}
}
