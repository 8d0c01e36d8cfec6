// Package exposition reads the text format in which a broker exposes its metrics to
// Prometheus, line by line, as far as a driver needs it. What cannot be read is skipped:
// a metric that is missing is never an error here.
package exposition

import (
	"strconv"
	"strings"
	"time"
)

// Sample is one line that holds a value. Its time, if it has one, is left out.
type Sample struct {
	Name   string
	Labels map[string]string // nil: the line has no braces
	Value  float64
}

// Parse takes one line apart: name{label="value",…} number [timestamp]. It is false for a
// comment, an empty line, and whatever else is no sample.
func Parse(line string) (s Sample, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return Sample{}, false
	}
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return Sample{}, false
	}
	s.Name, line = line[:end], line[end:]
	if line[0] == '{' {
		if s.Labels, line, ok = parseLabels(line[1:]); !ok {
			return Sample{}, false
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || len(fields) > 2 {
		return Sample{}, false
	}
	var err error
	if s.Value, err = strconv.ParseFloat(fields[0], 64); err != nil {
		return Sample{}, false
	}
	return s, true
}

// startTime is the metric that tells when the process started, in seconds since 1970.
const startTime = "process_start_time_seconds"

// Start is when the process started, to the millisecond, if that is what the sample says.
func (s Sample) Start() (at time.Time, ok bool) {
	if s.Name != startTime || !(s.Value > 0 && s.Value < 1e11) { // NaN is neither
		return time.Time{}, false
	}
	return time.UnixMilli(int64(s.Value * 1000)).UTC(), true
}

// ParseStart is Start of the sample in the line, without the cost of taking every other
// line apart.
func ParseStart(line string) (at time.Time, ok bool) {
	if !strings.HasPrefix(line, startTime) {
		return time.Time{}, false
	}
	s, _ := Parse(line)
	return s.Start()
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
