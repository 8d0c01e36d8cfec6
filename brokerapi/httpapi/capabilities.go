package httpapi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"holdfast/brokerapi"
)

// capability is one that this driver knows.
type capability struct {
	name string
	// fact: it says what the broker is and not what it can do, so a broker that has it
	// must not be taken for one that has it not.
	fact  bool
	byDef bool // in the default of the setting
	field func(*brokerapi.Capabilities) *bool
}

var capabilities = []capability{
	{"quiesce", false, true, func(c *brokerapi.Capabilities) *bool { return &c.Quiesce }},
	{"unload", false, true, func(c *brokerapi.Capabilities) *bool { return &c.Unload }},
	{"stable-name", false, true, func(c *brokerapi.Capabilities) *bool { return &c.StableName }},
	{"local-data", true, true, func(c *brokerapi.Capabilities) *bool { return &c.LocalData }},
	{"must-stop", true, false, func(c *brokerapi.Capabilities) *bool { return &c.MustStop }},
	{"steer", false, true, func(c *brokerapi.Capabilities) *bool { return &c.Steer }},
	{"end", false, true, func(c *brokerapi.Capabilities) *bool { return &c.End }},
}

// CapabilityNames are those that a broker can have here, in a fixed order.
func CapabilityNames() []string {
	var names []string
	for _, c := range capabilities {
		names = append(names, c.name)
	}
	return names
}

// DefaultCapabilities are those of a broker that keeps the whole contract: all but must-stop.
func DefaultCapabilities() []string {
	var names []string
	for _, c := range capabilities {
		if c.byDef {
			names = append(names, c.name)
		}
	}
	return names
}

// CheckCapabilities says what is wrong with a list of names, and what to write.
func CheckCapabilities(names []string) error {
	_, err := parseCapabilities(names)
	return err
}

func parseCapabilities(names []string) (brokerapi.Capabilities, error) {
	var can brokerapi.Capabilities
	for _, name := range names {
		at := slices.IndexFunc(capabilities, func(c capability) bool { return c.name == name })
		if name == "held-watch" {
			return can, errors.New("held-watch is no capability any more: leave it out: a connection is held to every broker")
		}
		if at < 0 {
			return can, fmt.Errorf("no capability is called %q: known are %s", name, strings.Join(CapabilityNames(), ", "))
		}
		*capabilities[at].field(&can) = true
	}
	return can, nil
}

// disagreement compares the setting with what the broker says of itself: nil when the
// broker can do all that will be asked of it and is nothing that it is not taken for. It
// may be able to do more, also what this version does not know.
func disagreement(set brokerapi.Capabilities, said []string) error {
	var lacks, hides, agreed []string
	for _, c := range capabilities {
		has, asked := slices.Contains(said, c.name), *c.field(&set)
		switch {
		case asked && !has && !c.fact:
			lacks = append(lacks, c.name)
			continue
		case has && !asked && c.fact:
			hides = append(hides, c.name)
		case !asked:
			continue
		}
		agreed = append(agreed, c.name)
	}
	remedy := "start the broker with more of the contract"
	if len(agreed) > 0 {
		remedy = fmt.Sprintf("write --http-capabilities %s if this is the right broker", strings.Join(agreed, ","))
	}
	switch {
	case len(lacks) > 0:
		return fmt.Errorf("the broker says that it has no %s: %s", strings.Join(lacks, ", "), remedy)
	case len(hides) > 0:
		return fmt.Errorf("the broker says of itself %s, which --http-capabilities does not: %s", strings.Join(hides, ", "), remedy)
	}
	return nil
}
