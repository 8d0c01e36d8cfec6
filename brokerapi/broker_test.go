package brokerapi

import (
	"strings"
	"testing"
)

func TestTraitsHaveNames(t *testing.T) {
	for want, traits := range map[string]Traits{
		"":                           {},
		"local-data,must-stop":       {LocalData: true, AtDeadline: Stop},
		"places,fences-itself":       {Places: true, AtDeadline: Nothing},
		"must-stop,registers-itself": {Registers: true, AtDeadline: Stop},
	} {
		if got := strings.Join(traits.List(), ","); got != want {
			t.Errorf("%+v is %q, want %q", traits, got, want)
		}
	}
}
