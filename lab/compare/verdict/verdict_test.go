package verdict

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// served is an outcome of three brokers that all serve.
func served(gap float64, change ...func(*Outcome)) Outcome {
	o := Outcome{GapSeconds: gap, Acknowledged: 100, Brokers: 3, Serving: 3}
	for _, f := range change {
		f(&o)
	}
	return o
}

func lost(n int) func(*Outcome)       { return func(o *Outcome) { o.Lost = n } }
func duplicated(n int) func(*Outcome) { return func(o *Outcome) { o.Duplicated = n } }
func serving(n int) func(*Outcome)    { return func(o *Outcome) { o.Serving = n } }
func destroyed(n int) func(*Outcome)  { return func(o *Outcome) { o.Destroyed = n } }
func asked(all ...string) func(*Outcome) {
	return func(o *Outcome) { o.Asked = all }
}
func stopped(n int) func(*Outcome) { return func(o *Outcome) { o.Stopped = n } }
func steps(all ...string) func(*Outcome) {
	return func(o *Outcome) { o.Steps = all }
}

// row is runs of pairs of outcomes, bare first.
func row(outcomes ...Outcome) (r Row) {
	for i := 0; i < len(outcomes); i += 2 {
		r = append(r, Run{Row: "fault", Manager: "Modular", Placement: "adopt", Number: i/2 + 1, Bare: outcomes[i], Holdfast: outcomes[i+1]})
	}
	return r
}

func TestARowIsWorseByItsMedianGapOrByAnyHarmThatBareLacks(t *testing.T) {
	for name, c := range map[string]struct {
		row   Row
		worse string
	}{
		"none were made":                       {nil, ""},
		"the same":                             {row(served(3), served(3)), ""},
		"2 s more, and not half as much again": {row(served(30), served(33)), ""},
		"half as much again, and not 2 s more": {row(served(0.2), served(2.1)), ""},
		"exactly at both":                      {row(served(4), served(6)), ""},
		"above both":                           {row(served(3), served(5.1)), "gap 5.1 s, not 3.0"},
		"one of three is long":                 {row(served(3), served(30), served(3), served(3), served(3), served(4)), ""},
		"two of three are long":                {row(served(3), served(30), served(3), served(3), served(3), served(40)), "gap 30.0 s, not 3.0"},
		"the mean of two is long":              {row(served(3), served(30), served(3), served(3)), "gap 16.5 s, not 3.0"},
		"one message lost in one of three":     {row(served(3), served(3, lost(1)), served(3), served(3), served(3), served(3)), "lost: 1, not 0"},
		"as many lost in another run":          {row(served(3), served(3, lost(2)), served(3, lost(2)), served(3)), ""},
		"duplicates":                           {row(served(3), served(3, duplicated(9))), ""},
		"a topic is destroyed":                 {row(served(3), served(3, destroyed(1))), "topics destroyed: 1, not 0"},
		"consumers that subscribed again":      {row(served(3), served(3, func(o *Outcome) { o.Resubscribed = 2 })), ""},
		"an operator was asked by design":      {row(served(3), served(3, asked("activate danube-1"))), ""},
		"a broker is dead":                     {row(served(3), served(3, serving(2))), "not serving: 1, not 0"},
		"the same broker is dead":              {row(served(3, serving(2)), served(3, serving(2))), ""},
		"an operator's step":                   {row(served(3), served(3, steps("activate pulsar-1"))), "operator's steps: 1, not 0"},
		"another operator's step":              {row(served(3, steps("restart pulsar-1")), served(3, steps("activate pulsar-1"))), ""},
		"a stop where bare goes on":            {row(served(3), served(3, stopped(1))), "stopped: 1"},
		"a stop where bare needs an operator":  {row(served(3, steps("restart pulsar-1"), serving(2)), served(3, stopped(1))), ""},
		"two harms":                            {row(served(3), served(9, lost(1))), "gap 9.0 s, not 3.0; lost: 1, not 0"},
	} {
		if got := strings.Join(c.row.Worse(), "; "); got != c.worse {
			t.Errorf("%s: %q, want %q", name, got, c.worse)
		}
	}
}

func TestTheTableStandsBothSideBySide(t *testing.T) {
	better := row(served(29), served(4), served(31, duplicated(2)), served(5))
	worse := row(served(1), served(1, serving(2), stopped(1), steps("activate a|b")))
	worse[0].Row = "other"
	for name, c := range map[string]struct {
		rows  []Row
		worse bool
		want  []string
	}{
		"better": {[]Row{better}, false, []string{
			"| fault | Modular, adopt | bare | 30.0 s (29.0, 31.0) | 0 | 0, 2 | 3 of 3 | nothing | 0 |",
			"| | | with | 4.5 s (4.0, 5.0) | 0 | 0 | 3 of 3 | nothing | 0 |",
		}},
		"one of two is worse": {[]Row{better, nil, worse}, true, []string{
			"| | | with: **worse** | 1.0 s | 0 | 0 | 2 of 3 (stopped: 1) | activate a\\|b | 0 |",
			"- other (Modular, adopt): not serving: 1, not 0; operator's steps: 1, not 0; stopped: 1",
		}},
	} {
		var out strings.Builder
		got := Table(&out, "manager, placement", c.rows)
		lines := strings.Split(out.String(), "\n")
		for _, want := range c.want {
			if !slices.Contains(lines, want) {
				t.Errorf("%s: no line %q in\n%s", name, want, &out)
			}
		}
		if got != c.worse {
			t.Errorf("%s: worse is %v", name, got)
		}
	}
}

func TestARunIsReadAsItWasSavedAndAPartOfOneIsAnError(t *testing.T) {
	dir := t.TempDir()
	saved := Run{Row: "kill -9, back in 4 s", Manager: "Modular", Placement: "own", Number: 2, Bare: served(29.5, steps("x")), Holdfast: served(4)}
	read := Run{Row: saved.Row, Manager: saved.Manager, Placement: saved.Placement, Number: saved.Number}
	if found, err := read.Load(dir); found || err != nil {
		t.Fatal("not made yet:", found, err)
	}
	if err := saved.Save(dir); err != nil {
		t.Fatal(err)
	}
	found, err := read.Load(dir)
	if !found || err != nil || read.Bare.GapSeconds != 29.5 || read.Bare.Steps[0] != "x" || read.Holdfast.GapSeconds != 4 {
		t.Errorf("%v, %v: %+v", found, err, read)
	}
	if saved.Name() != "kill--9,-back-in-4-s.Modular.own.2" {
		t.Error(saved.Name())
	}
	other := Run{Row: saved.Row, Manager: saved.Manager, Placement: "adopt", Number: 2}
	if found, err := other.Load(dir); found || err != nil {
		t.Error("that of another placement is found", err)
	}
	garble(t, saved.path(dir))
	if _, err := read.Load(dir); err == nil {
		t.Error("half a file is read")
	}
}

func garble(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(`{"Row":`), 0o644); err != nil {
		t.Fatal(err)
	}
}
