package main

import (
	"regexp"
	"strings"
)

const (
	mostLines = 15  // of one failure, at the end
	mostWidth = 400 // bytes of one line
)

var (
	// labLogs begins the logs of a lab's processes, which come after what failed.
	labLogs = regexp.MustCompile(`^\s+lab\.go:\d+: ----`)
	// crash begins what a Go program prints when it ends in disorder.
	crash = regexp.MustCompile(`^\s*(panic:|fatal error:|WARNING: DATA RACE)`)
	// dull is what go test says about the course of a test.
	dull = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME)\b|--- (FAIL|SKIP): |$)`)
)

// essence is the few lines of a failure that say what failed, for those who see no more
// than the end of the output.
func essence(output []string) []string {
	var lines []string
	for line := range strings.Lines(strings.Join(output, "")) {
		line = strings.TrimRight(line, " \r\n")
		if labLogs.MatchString(line) {
			break
		}
		if dull.MatchString(line) {
			continue
		}
		if len(line) > mostWidth {
			line = line[:mostWidth] + "…"
		}
		lines = append(lines, line)
	}
	for i, line := range lines {
		if crash.MatchString(line) {
			lines = lines[i:] // what it did before matters less than the first goroutine
			return lines[:min(len(lines), mostLines)]
		}
	}
	return lines[max(0, len(lines)-mostLines):]
}
