package agent

import "slices"

// unleased checks what goes together with --registration none.
func (r *report) unleased() {
	defaults := Default()
	for _, s := range settings {
		if s.Group == "etcd" && (s.value(&r.raw) != s.value(&defaults) || r.set(s.Name)) {
			r.notUnleased(s.Name, "which has no etcd")
		}
	}
	c := r.c
	if r.raw.Detach && r.set("detach") {
		r.list = append(r.list, problem{[]string{"detach", "registration"}, r.label("detach") + "=true: not together with " +
			r.show("registration") + ", which has no lease whose end could detach the broker: leave one of the two out"})
	}
	if c.Guard == "on" {
		r.notUnleased("guard", "which has no deadline that a guard could keep")
	}
	if slices.Contains(r.raw.Fence, "stop") {
		r.notUnleased("fence", "which has no fence point at which the broker could be stopped")
	}
	if c.Assignment == "rendezvous" {
		r.notUnleased("assignment", "where the broker's own cluster places the topics")
	}
	if c.OwnershipLocks == "on" && c.Assignment != "rendezvous" {
		r.notUnleased("ownership-locks", "which has no etcd to hold them in")
	}
	if c.SessionRetries > 0 {
		r.notUnleased("session-retries", "which has no etcd that could fail")
	}
}

func (r *report) notUnleased(name, why string) {
	r.add(name, "not together with "+r.show("registration")+", "+why+": leave one of the two out", "registration")
}
