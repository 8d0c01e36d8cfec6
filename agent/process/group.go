package process

import "holdfast/probes"

// GroupGone is true when the process and whatever is left of the group that it led are
// proven to have ended: a script that did not exec ends before what it started.
func (t Target) GroupGone() bool {
	if !t.Gone() {
		return false
	}
	members, err := t.group()
	return err == nil && len(members) == 0
}

// group lists the group that the process leads or led. As long as it has a member the
// kernel gives its number to nobody else; so whoever has the number now and is not the
// leader, proves it empty.
func (t Target) group() ([]probes.ProcessView, error) {
	in, err := probes.InGroup(t.Pid)
	if err != nil {
		return nil, err
	}
	if now, err := TargetOf(t.Pid); err == nil && now != t {
		return nil, nil
	}
	return in, nil
}
