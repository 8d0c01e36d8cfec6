package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"holdfast/agent/registration"
)

// A first adoption is what each start of such a broker brings.
func TestAnAdoptionIsNoRepair(t *testing.T) {
	for was, said := range map[string]string{
		registration.UnderItsOwn: `level=INFO msg="registration adopted"`,
		"foreign lease":          `level=WARN msg="registration repaired"`,
	} {
		inLife(t, nil, func(l *sidecarLife) {
			var log bytes.Buffer
			l.inLoop(func() { l.log = slog.New(slog.NewTextHandler(&log, nil)) })
			l.deliverOutcome(t, registration.Outcome{Repaired: was})
			var text string
			l.inLoop(func() { text = log.String() })
			if !strings.Contains(text, said) {
				t.Errorf("%s: the log says %q", was, text)
			}
		})
	}
}
