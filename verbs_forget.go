package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast/agent"
	"holdfast/cluster"
)

// forgetTries is how often a broker is looked at anew that is not as it was seen.
const forgetTries = 4

func forget(c call) error {
	client, err := c.etcd("this broker: nothing to forget")
	if err != nil {
		return err
	}
	defer client.Close()
	f := forgetting{client: client, settings: c.settings, out: c.out(), id: c.Args().First()}
	return f.run(c.Context, c.Bool("dry-run"))
}

// forgetting is one use of the verb.
type forgetting struct {
	client     *cluster.Client
	settings   agent.Config
	out        *output
	id         string
	unassigned []string // so far
}

func (f *forgetting) run(ctx context.Context, dry bool) error {
	what := ""
	for tries := 1; ; tries++ {
		seen, err := f.client.Remains(ctx, f.id)
		switch {
		case err != nil:
			return f.refused(err)
		case tries == 1 && !seen.Any():
			return fmt.Errorf("forget %s: etcd knows no such broker below --prefix %q: 'holdfast fleet' lists those that it knows", f.id, f.settings.Prefix)
		case tries == 1:
			what = whatRemains(seen)
		}
		if dry {
			f.out.line("%s would be forgotten: %s.", f.id, what)
			return nil
		}
		gone, err := f.client.Forget(ctx, seen)
		f.unassigned = append(f.unassigned, gone...)
		if err == nil {
			f.print(what)
			return nil
		}
		if !errors.Is(err, cluster.ErrChanged) || tries == forgetTries {
			return f.refused(err)
		}
	}
}

// inTheWay says what to do about what keeps a broker from being forgotten.
var inTheWay = map[error]string{
	cluster.ErrRegistered: "stop the broker and its sidecar, or wait until the lease has ended; if the broker is gone and no lease ends it, delete the key",
	cluster.ErrHolds:      "wait until its lease has ended, or delete what it says if the broker is gone",
	cluster.ErrUnreadable: "under which id it is registered is not known; if the broker is gone, delete the key",
	cluster.ErrChanged:    "somebody goes on changing it: find out who, then try again",
}

// refused says what is in the way, and what was done before.
func (f *forgetting) refused(err error) error {
	text := "forget " + f.id
	if len(f.unassigned) > 0 {
		text += ": " + counted("topics that are unassigned already", f.unassigned) + "; the rest is as it was"
	}
	for cause, next := range inTheWay {
		if errors.Is(err, cause) {
			return &agent.ExitError{Code: agent.ExitRefused, Err: fmt.Errorf("%s: %w: %s", text, err, next)}
		}
	}
	return fmt.Errorf("%s: %w", text, agent.EtcdError(f.settings, err))
}

func (f *forgetting) print(what string) {
	f.out.line("%s is forgotten: %s.", f.id, what)
	if len(f.unassigned) > 0 {
		f.out.line("%s.", counted("Topics that wait for a broker now", f.unassigned))
	}
}

// whatRemains is what of a broker is to go, in words.
func whatRemains(r cluster.Remains) string {
	var parts, alone, also []string
	if r.Member != nil {
		parts = append(parts, "its member record")
	}
	switch {
	case r.StateMalformed != "":
		parts = append(parts, "its mode, which cannot be read")
	case r.State != nil:
		parts = append(parts, "its mode, "+withReason(r.State.Mode, r.State.Reason))
	}
	for _, t := range r.Topics {
		if t.Also == "" {
			alone = append(alone, t.Topic)
		} else {
			also = append(also, fmt.Sprintf("%s (%s)", t.Topic, t.Also))
		}
	}
	if len(alone) > 0 {
		parts = append(parts, counted("its topics", alone))
	}
	if len(also) > 0 {
		parts = append(parts, counted("topics that others have as well", also))
	}
	return strings.Join(parts, "; ")
}

// counted says how many they are, and names the first of them.
func counted(what string, names []string) string {
	const most = 5
	n := len(names)
	if n > most {
		names = append(names[:most:most], "…")
	}
	return fmt.Sprintf("%s (%d): %s", what, n, strings.Join(names, ", "))
}
