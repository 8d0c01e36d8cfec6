package recovery

import (
	"fmt"
	"slices"
	"strings"
)

// Holdings is what a broker serves that was never registered here, and whose it is.
type Holdings struct {
	Serving []string
	// Assigned is to which brokers each of these topics is assigned.
	Assigned map[string][]string
	// Any: some topic of the cluster is assigned to somebody. Without any, an assignment
	// that is missing says nothing.
	Any bool
}

// holdingsNamed is how many topics a sentence names.
const holdingsNamed = 3

// Strange is what the broker of that id must not serve, in words for an operator; empty if
// there is nothing: topics of others, and topics of nobody once there are assignments.
func (h Holdings) Strange(self string) string {
	var theirs, nobodys []string
	for _, topic := range slices.Sorted(slices.Values(h.Serving)) {
		switch to := h.Assigned[topic]; {
		case slices.Contains(to, self):
		case len(to) > 0:
			theirs = append(theirs, fmt.Sprintf("%s (of %s)", topic, strings.Join(to, ", ")))
		case h.Any:
			nobodys = append(nobodys, topic)
		}
	}
	var parts []string
	if len(theirs) > 0 {
		parts = append(parts, fmt.Sprintf("%d assigned to others: %s", len(theirs), some(theirs)))
	}
	if len(nobodys) > 0 {
		parts = append(parts, fmt.Sprintf("%d assigned to nobody: %s", len(nobodys), some(nobodys)))
	}
	return strings.Join(parts, "; ")
}

// some are the first of a list, for a sentence.
func some(list []string) string {
	if len(list) > holdingsNamed {
		return strings.Join(list[:holdingsNamed], ", ") + ", …"
	}
	return strings.Join(list, ", ")
}
