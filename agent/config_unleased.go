package agent

import "slices"

// unleased checks what goes together with --registration none.
func (r *report) unleased() {
	defaults := Default()
	for _, s := range settings {
		r.notUnleased(s.Group == "etcd" && (s.value(&r.raw) != s.value(&defaults) || r.set(s.Name)), s.Name, "which has no etcd")
	}
	c := r.c
	if r.raw.Detach && r.set("detach") {
		r.list = append(r.list, problem{[]string{"detach", "registration"}, r.label("detach") + "=true: not together with " +
			r.show("registration") + ", which has no lease whose end could detach the broker: leave one of the two out"})
	}
	r.when(!drivers[c.Driver].Unleased, "registration", "not with a broker of this driver: its cluster does not keep its registration without Holdfast, or does not say who else is active: leave it out, and give --etcd-endpoints", "driver")
	r.notUnleased(c.Guard == "on", "guard", "which has no deadline that a guard could keep")
	r.notUnleased(slices.Contains(r.raw.Fence, "stop"), "fence", "which has no fence point at which the broker could be stopped")
	r.notUnleased(c.Assignment == "rendezvous", "assignment", "where the broker's own cluster places the topics")
	r.notUnleased(c.OwnershipLocks == "on" && c.Assignment != "rendezvous", "ownership-locks", "which has no etcd to hold them in")
	r.notUnleased(c.SessionRetries > 0, "session-retries", "which has no etcd that could fail")
}

func (r *report) notUnleased(wrong bool, name, why string) {
	r.when(wrong, name, "not together with "+r.show("registration")+", "+why+": leave one of the two out", "registration")
}
