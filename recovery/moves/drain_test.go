package moves

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTheRateIsOfAllMovesTogetherWhileAnyCopied(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	done := func(bytes uint64, from, to int) Move {
		return Move{Phase: Done, Sealed: &Extent{Bytes: bytes}, Since: map[Phase]time.Time{
			Sealed: at.Add(time.Duration(from) * time.Second), Done: at.Add(time.Duration(to) * time.Second)}}
	}
	for _, tt := range []struct {
		name string
		all  []Move
		want float64
	}{
		{"none", nil, 0},
		{"one", []Move{done(100, 0, 4)}, 25},
		{"two at a time", []Move{done(100, 1, 4), done(100, 0, 4)}, 50},
		{"one within the other", []Move{done(100, 0, 4), done(100, 1, 2), done(100, 3, 4)}, 75},
		{"one hour later", []Move{done(100, 3600, 3602), done(100, 0, 2)}, 50},
		{"failed", []Move{{Phase: Failed, Sealed: &Extent{Bytes: 100}}, {Phase: Done, Sent: true}}, 0},
		{"in no time", []Move{done(100, 4, 4)}, 0},
	} {
		if got := Rate(tt.all); got != tt.want {
			t.Errorf("%s: %g bytes a second, want %g", tt.name, got, tt.want)
		}
	}
}

func TestADrainsRecordIsReadAsItWasWritten(t *testing.T) {
	d := Drain{State: Moving, Topics: 3, Moved: 1, Left: map[string]string{"/n/a": "no room", "/n/b": "it is in memory"}, Deadline: time.Unix(1, 0).UTC()}
	got, err := ParseDrain(d.Value())
	if want := "moving: 1 of 3 topics moved, 2 left: /n/a: no room"; err != nil || got.Line() != want {
		t.Errorf("%q, %v; want %q", got.Line(), err, want)
	}
	for i := range 600 {
		d.Left[fmt.Sprintf("/n/%03d", i)] = "no room"
	}
	if got, err := ParseDrain(d.Value()); err != nil || len(got.Left) != 500 || got.More != 102 || len(d.Left) != 602 || !strings.Contains(got.Line(), " 602 left: /n/000: no room") {
		t.Errorf("%d left, %d more, %q, %v", len(got.Left), got.More, got.Line(), err)
	}
	for value, newer := range map[string]bool{`{`: false, `{}`: false, `{"format":9,"state":"moving"}`: true} {
		if got, err := ParseDrain([]byte(value)); err == nil || errors.Is(err, ErrNewer) != newer || got.State != "" {
			t.Errorf("%s: %+v, %v", value, got, err)
		}
	}
}

func TestHowFarADrainIs(t *testing.T) {
	for want, d := range map[string]Drain{
		"moving: 1 of 3 topics moved":                              {State: Moving, Topics: 3, Moved: 1},
		"left: 0 of 1 topic moved, 1 left: /a: no room":            {State: Left, Topics: 1, Left: map[string]string{"/a": "no room"}},
		"waiting: 0 of 4 topics moved; the drain of b comes first": {State: Waiting, Topics: 4, Error: "the drain of b comes first"},
		"drained: 3 of 3 topics moved; etcd is away":               {State: Drained, Topics: 3, Moved: 3, Error: "etcd is away"},
	} {
		if got := d.Line(); got != want || d.State.Over() != (d.State == Left || d.State == Drained) {
			t.Errorf("%q, over %t; want %q", got, d.State.Over(), want)
		}
	}
	full := Drain{State: Moving, Left: map[string]string{}}
	for i := range maxLeft {
		full.Left[fmt.Sprint(i)] = "no room"
	}
	if got, err := ParseDrain(full.Value()); err != nil || len(got.Left) != maxLeft || got.More != 0 {
		t.Errorf("%d left, %d more, %v", len(got.Left), got.More, err)
	}
	whole := float64(len(Phases))
	for _, c := range []struct {
		m    Move
		want float64
	}{
		{Move{Phase: Pending}, 0},
		{Move{Phase: Sealed, Sealed: &Extent{Bytes: 30}, Moved: 15}, 2.5 / whole},
		{Move{Phase: Sealed, Sealed: &Extent{Bytes: 30}, Moved: 60}, 3 / whole},
		{Move{Phase: Sealed, Sealed: &Extent{}}, 2 / whole},
	} {
		if got := c.m.Part(); got != c.want {
			t.Errorf("%s: %g, want %g", c.m.Phase, got, c.want)
		}
	}
}
