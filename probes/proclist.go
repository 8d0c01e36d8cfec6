package probes

import "fmt"

// InGroup lists the processes of a process group. Zombies are not in it.
func InGroup(group int) ([]ProcessView, error) {
	return list("look for a process group", func(f found) bool { return f.group == group && !f.ended() })
}

// GroupLeaders lists the processes that lead a process group.
func GroupLeaders() ([]ProcessView, error) {
	return list("look for process groups", func(f found) bool { return f.group == f.pid && !f.ended() })
}

// ZombiesOf lists the processes that have ended and whose parent has not taken their
// status yet.
func ZombiesOf(parent int) ([]ProcessView, error) {
	return list("look for zombies", func(f found) bool { return f.parent == parent && f.ended() })
}

// list returns the processes that are wanted, without StartedAt. What cannot be read
// has ended or is hidden from us.
func list(what string, want func(found) bool) ([]ProcessView, error) {
	all, err := pids()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	var wanted []ProcessView
	for _, pid := range all {
		if f, err := readStat(pid); err == nil && want(f) {
			wanted = append(wanted, f.view())
		}
	}
	return wanted, nil
}
