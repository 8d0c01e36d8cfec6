package exposition

import (
	"maps"
	"math"
	"testing"
	"time"
)

func TestALineIsASampleOrNothing(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       *Sample
	}{
		{"a name and a number", "up 1", &Sample{"up", nil, 1}},
		{"labels and a time", `a{x="1",y="2"} 1e3 1700000000000`, &Sample{"a", map[string]string{"x": "1", "y": "2"}, 1000}},
		{"blanks wherever they may be", "  a{ x = \"1\" , y=\"\" }\t1\r\n", &Sample{"a", map[string]string{"x": "1", "y": ""}, 1}},
		{"escapes in a value", `a{x="\\\"\n}{"} 1`, &Sample{"a", map[string]string{"x": "\\\"\n}{"}, 1}},
		{"no number", "a{} many", nil},
		{"no value", `a{x="1"}`, nil},
		{"more than a value and a time", "a 1 2 3", nil},
		{"cut off in a label", `a{x="1`, nil},
		{"cut off in an escape", `a{x="1\`, nil},
		{"a label without quotes", `a{x=1} 1`, nil},
		{"a comment", "# TYPE a gauge", nil},
		{"no name", "{} 1", nil},
		{"nothing", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := Parse(c.line)
			if ok != (c.want != nil) || ok && (got.Name != c.want.Name || !maps.Equal(got.Labels, c.want.Labels) || got.Value != c.want.Value) {
				t.Errorf("%q is %+v, %v, want %+v", c.line, got, ok, c.want)
			}
		})
	}
}

func TestTheStartOfTheProcessIsATime(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       time.Time
	}{
		{"alone", "process_start_time_seconds 1700000000.25", time.UnixMilli(1700000000250)},
		{"with labels", `process_start_time_seconds{cluster="a}b"} 1.7e9 1`, time.Unix(1700000000, 0)},
		{"of another name", "process_start_time_seconds_ago 1.7e9", time.Time{}},
		{"zero", "process_start_time_seconds 0", time.Time{}},
		{"before 1970", "process_start_time_seconds -1", time.Time{}},
		{"not a number", "process_start_time_seconds NaN", time.Time{}},
		{"in milliseconds", "process_start_time_seconds 1.7e12", time.Time{}},
		{"without braces closed", "process_start_time_seconds{ 1.7e9", time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if at, ok := ParseStart(c.line); ok == c.want.IsZero() || !at.Equal(c.want) {
				t.Errorf("%q: %v, %v, want %v", c.line, at, ok, c.want)
			}
		})
	}
}

func FuzzStartTime(f *testing.F) {
	for _, s := range []string{"process_start_time_seconds 1.7e9", `process_start_time_seconds{cluster="a}b"} 1700000000.123`,
		"process_start_time_seconds NaN", "process_start_time_seconds{", "process_start_time_seconds +Inf 3 4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		at, ok := ParseStart(line)
		if ok == at.IsZero() {
			t.Fatalf("%q: %v, %v", line, at, ok)
		}
	})
}

func FuzzSample(f *testing.F) {
	f.Add("danube_broker_topics_owned{broker=\"12345\"} 3")
	f.Add("a{=\"\",,\"}")
	f.Add("\x00\xff{broker=\"")
	f.Fuzz(func(t *testing.T, line string) {
		s, ok := Parse(line)
		if ok == (s.Name == "") {
			t.Fatalf("%q: %+v, %v", line, s, ok)
		}
		again, whole := Parse("  " + line + "\r\n")
		same := again.Value == s.Value || math.IsNaN(again.Value) && math.IsNaN(s.Value)
		if whole != ok || again.Name != s.Name || !maps.Equal(again.Labels, s.Labels) || ok && !same {
			t.Fatalf("%q is %+v, and with blanks around it %+v", line, s, again)
		}
	})
}
