package agent

import "holdfast/brokerapi"

// suits lists what cannot be asked of a broker that can do so much.
func suits(c Config, can brokerapi.Capabilities) []problem {
	r := &report{raw: c, c: c.Effective()}
	if can.Assigns {
		const own = "this broker's own cluster says who serves a topic: leave it out"
		if r.c.Assignment == "rendezvous" {
			r.add("assignment", own)
		} else if r.c.OwnershipLocks == "on" {
			r.add("ownership-locks", own)
		}
	}
	if !namedByInstance(r.c, can) {
		return r.list
	}
	const random = "this broker registers itself under an id that is another at each start"
	if r.c.BrokerID == "" {
		r.list = append(r.list, problem{[]string{"broker-id"},
			"--broker-id: required, because " + random + ": give it a name that stays, such as the host's"})
	}
	if r.c.Assignment == "rendezvous" {
		r.add("assignment", random+", so its topics have no place that stays, and its own cluster gives them one: leave it out")
	}
	if r.c.OwnershipLocks == "on" && r.c.Assignment != "rendezvous" {
		r.add("ownership-locks", random+", and its own cluster says who serves a topic: leave it out")
	}
	return r.list
}

// namedByInstance reports whether the broker's id in etcd is that of its process.
func namedByInstance(c Config, can brokerapi.Capabilities) bool {
	return can.NamedByInstance && c.Registration == "adopt"
}
