package topics

import (
	"fmt"

	"holdfast/recovery"
)

func byPerson(m recovery.Mode) *recovery.ModeRecord {
	return &recovery.ModeRecord{Mode: m, Reason: "disk swap", By: "operator"}
}

func steering(o recovery.Orders, s recovery.Steering) recovery.Orders {
	o.Steering = s
	return o
}

func brokerNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("broker-%03d", i))
	}
	return names
}

func topicNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("/ns%d/topic-%d", i%7, i))
	}
	return names
}
