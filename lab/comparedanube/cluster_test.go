package main

import "testing"

func TestATopicIsDoomedByTheLossOfItsCursorsOrOfTheIndexOfItsMessages(t *testing.T) {
	for rest, want := range map[string]string{
		"default/a/subscriptions/lab/cursor":       "/default/a",
		"default/a/objects/00000000000000000001":   "/default/a",
		"default/a/state":                          "", // a seal
		"default/a/subscriptions/lab":              "",
		"default/a/producers/1":                    "",
		"default/a/delivery":                       "",
		"holdfast/health/subscriptions/lab/cursor": "", // the comparison's own
		"holdfast/end":                             "",
	} {
		if got, is := doomed(rest); got != want || is != (want != "") {
			t.Errorf("%s: %q, %t", rest, got, is)
		}
	}
}
