//go:build pulsar

package pulsar

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"holdfast/lab/harness"
)

var record = flag.Bool("record", false, "write the broker's answers into ../standin/pulsar/testdata, from which its stand-in is written")

// What the stand-in is held to by TestTheStandInAnswersAsTheRealBrokerDid is what the real one says.
func TestTheRealBrokerAnswersAsItDid(t *testing.T) {
	a := cluster(t, harness.ApacheOptions{})
	b, err := a.StartBroker(t.Context())
	ok(t, err)
	makeNamespaces(t, b)
	answers, err := harness.ReadPulsarAnswers()
	ok(t, err)
	for i, want := range answers.Answers {
		got, err := answers.Ask(t.Context(), b.Pulsar, want)
		ok(t, err)
		if *record {
			answers.Answers[i] = got
		} else if err := want.Differs(got); err != nil {
			t.Errorf("%s (%s): %v", want.Request, want.Accept, err)
		}
	}
	if *record {
		answers.Version, answers.Recorded = harness.PulsarVersion, fmt.Sprint(time.Now().UTC().Format(time.DateOnly))
		ok(t, answers.Write())
	}
}
