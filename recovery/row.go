package recovery

import (
	_ "embed"
	"strings"
)

// The rows of the tables that keep the mode that was, or give none. The other rows are named
// by the reason that they give.
const (
	RowKept        Reason = "kept"              // a drain that only a person may lift
	RowSurvived    Reason = "survived"          // an outage that the registration outlived
	RowReconnected Reason = "reconnected"       // registered again by policy, with the mode we had
	RowConflict    Reason = "identity_conflict" // another incarnation is registered
	RowAwait       Reason = "awaits_life"       // whether a peer lived on is not known yet
)

// otherwiseTxt holds, a row a line, what would have made it another.
//
//go:embed otherwise.txt
var otherwiseTxt string

// Otherwise says, for an operator, what would have made the row that decided another one;
// empty: the row is not known here.
func Otherwise(row Reason) string {
	for line := range strings.Lines(otherwiseTxt) {
		if text, ok := strings.CutPrefix(line, string(row)+": "); ok {
			return strings.TrimSuffix(text, "\n")
		}
	}
	return ""
}
