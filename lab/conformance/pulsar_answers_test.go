package conformance

import (
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// TestTheStandInAnswersAsTheRealBrokerDid plays what lab/pulsar recorded.
func TestTheStandInAnswersAsTheRealBrokerDid(t *testing.T) {
	answers, err := harness.ReadPulsarAnswers()
	if err != nil {
		t.Fatal(err)
	}
	s := launchPulsar(t)
	for _, want := range answers.Answers {
		if strings.Contains(want.Request, "/public/nowhere/") {
			continue // beside the stand-in every namespace is there
		}
		got, err := answers.Ask(bound(t), s.Pulsar, want)
		if err != nil {
			t.Fatal(err)
		}
		if err := want.Differs(got); err != nil {
			t.Errorf("%s (%s): %v", want.Request, want.Accept, err)
		}
	}
}
