package danube

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// exposed is what the broker's metrics say about the process, as far as we need it.
type exposed struct {
	Brokers   []string  // different values of the label "broker", in the order they came
	StartedAt time.Time // zero: the metrics do not tell
}

// take reads one line in the text format of Prometheus. One that it cannot read it skips.
func (e *exposed) take(line string) {
	name, labels, value, ok := parseSample(strings.TrimSpace(line))
	if !ok {
		return
	}
	if id := labels["broker"]; id != "" && len(e.Brokers) < 3 && !slices.Contains(e.Brokers, id) {
		e.Brokers = append(e.Brokers, id)
	}
	if name == "process_start_time_seconds" && value > 0 && value < 1e11 {
		e.StartedAt = time.UnixMilli(int64(value * 1000))
	}
}

// parseSample takes one line apart: name{label="value",…} number [timestamp].
func parseSample(line string) (name string, labels map[string]string, value float64, ok bool) {
	if line == "" || line[0] == '#' {
		return "", nil, 0, false
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", nil, 0, false
	}
	name, line = line[:end], line[end:]
	if line[0] == '{' {
		if labels, line, ok = parseLabels(line[1:]); !ok {
			return "", nil, 0, false
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || len(fields) > 2 {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	return name, labels, value, err == nil
}

// parseLabels reads up to the closing brace and returns what stands behind it.
func parseLabels(s string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		s = strings.TrimLeft(s, " \t,")
		if after, closed := strings.CutPrefix(s, "}"); closed {
			return labels, after, true
		}
		name, after, found := strings.Cut(s, "=")
		if !found {
			return nil, "", false
		}
		value, after, found := parseQuoted(strings.TrimLeft(after, " \t"))
		if !found {
			return nil, "", false
		}
		labels[strings.TrimSpace(name)] = value
		s = after
	}
}

// parseQuoted reads one quoted value; \\, \" and \n are escapes in it.
func parseQuoted(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return out.String(), s[i+1:], true
		case '\\':
			i++
			if i == len(s) {
				return "", "", false
			}
			if s[i] == 'n' {
				out.WriteByte('\n')
			} else {
				out.WriteByte(s[i])
			}
		default:
			out.WriteByte(s[i])
		}
	}
	return "", "", false
}
