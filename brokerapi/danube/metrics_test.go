package danube

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// expose takes all lines of the text.
func expose(text string) (e exposed) {
	for line := range strings.Lines(text) {
		e.take(line)
	}
	return e
}

func TestMetricsTellBrokerAndStart(t *testing.T) {
	for _, c := range []struct {
		name, text string
		brokers    []string
		start      time.Time
	}{
		{"as the broker writes them", "# HELP danube_broker_topics_owned Topics.\n# TYPE danube_broker_topics_owned gauge\n" +
			"danube_broker_topics_owned{broker=\"12345\"} 3\ndanube_topic_messages_in_total{topic=\"/a/b\",broker=\"12345\"} 1e3\n", []string{"12345"}, time.Time{}},
		{"start of the process", "process_start_time_seconds 1700000000.25\n", nil, time.UnixMilli(1700000000250)},
		{"start with labels", "process_start_time_seconds{broker=\"7\"} 1.7e9\n", []string{"7"}, time.Unix(1700000000, 0)},
		{"two brokers", "a{broker=\"1\"} 1\na{broker=\"2\"} 1\na{broker=\"1\"} 1\n", []string{"1", "2"}, time.Time{}},
		{"label in a comment", "# a{broker=\"1\"} 1\n", nil, time.Time{}},
		{"label in another's value", "a{topic=\"broker=\\\"9\\\"\",broker=\"1\"} 1\n", []string{"1"}, time.Time{}},
		{"braces in a value", "a{topic=\"}{\",broker=\"1\"} 1 1700000000000\n", []string{"1"}, time.Time{}},
		{"carriage returns and spaces", "  a{ broker = \"1\" , x=\"\" } 1\r\n", []string{"1"}, time.Time{}},
		{"cut off in a line", "a{broker=\"1\"} 1\na{broker=\"12", []string{"1"}, time.Time{}},
		{"no number", "a{broker=\"1\"} many\na{broker=\"1\"}\n", nil, time.Time{}},
		{"a web page", "<html><body>broker=\"1\"</body></html>\n", nil, time.Time{}},
		{"a start that is none", "process_start_time_seconds -1\nprocess_start_time_seconds NaN\nprocess_start_time_seconds +Inf\n", nil, time.Time{}},
		{"nothing", "", nil, time.Time{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := expose(c.text)
			if !slices.Equal(e.Brokers, c.brokers) || !e.StartedAt.Equal(c.start) {
				t.Errorf("got %+v, want %q and %v", e, c.brokers, c.start)
			}
		})
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add("danube_broker_topics_owned{broker=\"12345\"} 3\n")
	f.Add("process_start_time_seconds{a=\"\\\\\\n\\\"\"} 1.7e9 1\n")
	f.Add("a{=\"\",,\"}\n#\n{\n\x00\xff{broker=\"")
	f.Fuzz(func(t *testing.T, text string) {
		e := expose(text)
		if len(e.Brokers) > 3 || slices.Contains(e.Brokers, "") {
			t.Fatalf("brokers %q", e.Brokers)
		}
		if len(e.Brokers) > 0 && !strings.Contains(text, "broker") {
			t.Fatalf("brokers %q of a text that names none", e.Brokers)
		}
		if s := e.StartedAt; !s.IsZero() && (s.Unix() < 0 || s.Unix() > 1e11) {
			t.Fatalf("started at %v", s)
		}
	})
}
