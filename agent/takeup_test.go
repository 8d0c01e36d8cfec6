package agent

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/recovery"
)

// A first adoption is what each start of such a broker brings.
func TestAnAdoptionIsNoRepair(t *testing.T) {
	for was, said := range map[string]string{
		underItsOwn:     `level=INFO msg="registration adopted"`,
		"foreign lease": `level=WARN msg="registration repaired"`,
	} {
		inLife(t, nil, func(l *sidecarLife) {
			var log bytes.Buffer
			l.inLoop(func() { l.log = logTo(&log) })
			l.deliverOutcome(t, outcome{repaired: was})
			var text string
			l.inLoop(func() { text = log.String() })
			if !strings.Contains(text, said) {
				t.Errorf("%s: the log says %q", was, text)
			}
		})
	}
}

func TestALoadReportOfADeletedRegistrationIsRefusedAsThat(t *testing.T) {
	a := newAdopted(t, nil)
	k := locks{client: a.client, brokerID: func() string { return "n1" }, incarnation: "mine"}
	standing := recovery.Standing{LeaseID: a.first.LeaseID, Epoch: a.first.Epoch}
	if err := k.PutLoad(t.Context(), standing, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	a.del("n1")
	if err := k.PutLoad(t.Context(), standing, nil, time.Now()); !errors.Is(err, recovery.ErrUnregistered) {
		t.Errorf("%v, want %v", err, recovery.ErrUnregistered)
	}
}
