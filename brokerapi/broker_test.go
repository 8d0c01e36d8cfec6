package brokerapi

import (
	"reflect"
	"testing"
)

func TestEveryCapabilityHasAName(t *testing.T) {
	var all Capabilities
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		before := len(all.List())
		v.Field(i).SetBool(true)
		if len(all.List()) != before+1 {
			t.Errorf("%s has no name, or more than one", v.Type().Field(i).Name)
		}
	}
}

func TestCapabilitiesReadAsASentence(t *testing.T) {
	for _, row := range []struct {
		name string
		c    Capabilities
		want string
	}{
		{"none", Capabilities{}, "can: only serve"},
		{"what it can", Capabilities{Quiesce: true, Steer: true}, "can: quiesce, steer"},
		{"how it is", Capabilities{LocalData: true}, "can: only serve; has: local-data"},
		{"both", Capabilities{Unload: true, MustStop: true}, "can: unload; has: must-stop"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := row.c.String(); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}
