package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"holdfast/agent"
	"holdfast/cluster"
)

const (
	// forgetTimeout bounds the whole: a cluster may have many assignments to look through.
	forgetTimeout = time.Minute
	// forgetTries is how often a broker is looked at anew that is not as it was seen.
	forgetTries = 4
)

// forgetSettings say which etcd it is, and where brokers of this kind are registered.
func forgetSettings() []string { return append(etcdSettings(), "driver", "registration") }

func forgetVerb() *verb {
	dryRun := &option{name: "dry-run", help: "say what would be done, and do nothing"}
	return &verb{
		name:  "forget",
		args:  "ID",
		short: "remove a broker that will not come back from etcd",
		long: "Removes what etcd holds of a broker that is gone for good: its assignments, which become topics\n" +
			"that wait for a broker (/cluster/unassigned/), its mode, its load report and, last, its member\n" +
			"record. What was interrupted is finished by the same command again. Refused, with exit code 3,\n" +
			"while the broker is registered, while one of its ownership locks stands, or if it registers\n" +
			"meanwhile; topics that are given to others meanwhile are left alone.\n\n" +
			"It removes no data, and whoever takes a topic that only this broker had begins without its data.\n" +
			"Nothing in etcd shows whether the broker's process has ended: stop it first. If it comes back all\n" +
			"the same, it has no topics: with its --state-dir it is drained while others are registered\n" +
			"(stale_restart); without, it is taken for one that was never here (first_registration), and is\n" +
			"drained if it serves what is not assigned to it (unknown_data).\n\n" +
			"Takes the settings of 'holdfast run', --driver too, because that says where brokers of this kind\n" +
			"are registered. The others are not looked at.",
		flags: append(options{dryRun}, onlyShown(settingOptions(), forgetSettings())...),
		do: func(ctx context.Context, v *verb, io streams, args []string) error {
			id, err := v.oneArg(args)
			if err != nil {
				return err
			}
			dry, err := dryRun.on()
			if err != nil {
				return err
			}
			c, err := v.flags.load(forgetSettings()...)
			switch {
			case err != nil:
				return err
			case c.Unleased():
				return usage("--registration none: there is no etcd that knows this broker: nothing to forget")
			}
			cluster.Resolve(ctx, c.Cluster())
			ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
			defer cancel()
			client, err := cluster.Open(c.Cluster(), slog.New(slog.DiscardHandler))
			if err != nil {
				return usage("%w", err)
			}
			defer client.Close()
			return (&forgetting{client: client, c: c, out: io.out, id: id}).run(ctx, dry)
		},
	}
}

// forgetting is one use of the verb.
type forgetting struct {
	client     *cluster.Client
	c          agent.Config
	out        io.Writer
	id         string
	what       string   // of it was there at first
	unassigned []string // so far
}

func (f *forgetting) run(ctx context.Context, dry bool) error {
	for tries := 1; ; tries++ {
		seen, err := f.client.Remains(ctx, f.id)
		if err == nil && !seen.Any() && tries == 1 {
			return fmt.Errorf("forget %s: etcd knows no such broker below --prefix %q: 'holdfast fleet' lists those that it knows", f.id, f.c.Prefix)
		}
		if err != nil {
			return f.refused(err)
		}
		if tries == 1 {
			f.what = whatRemains(seen)
		}
		if dry {
			return f.print(fmt.Sprintf("%s would be forgotten: %s.", f.id, f.what))
		}
		gone, err := f.client.Forget(ctx, seen)
		f.unassigned = append(f.unassigned, gone...)
		switch {
		case err == nil:
			return f.print(fmt.Sprintf("%s is forgotten: %s.", f.id, f.what))
		case !errors.Is(err, cluster.ErrChanged) || tries == forgetTries:
			return f.refused(err)
		}
	}
}

// refused says what is in the way, and what was done before.
func (f *forgetting) refused(err error) error {
	next := ""
	switch {
	case errors.Is(err, cluster.ErrRegistered):
		next = "stop the broker and its sidecar, or wait until the lease has ended; if the broker is gone and no lease ends it, delete the key"
	case errors.Is(err, cluster.ErrHolds):
		next = "wait until its lease has ended, or delete what it says if the broker is gone"
	case errors.Is(err, cluster.ErrUnreadable):
		next = "under which id it is registered is not known; if the broker is gone, delete the key"
	case errors.Is(err, cluster.ErrChanged):
		next = "somebody goes on changing it: find out who, then try again"
	default:
		err = agent.EtcdError(f.c, err)
	}
	text := fmt.Sprintf("forget %s", f.id)
	if n := len(f.unassigned); n > 0 {
		text += fmt.Sprintf(": topics that are unassigned already (%d): %s; the rest is as it was", n, someOf(f.unassigned))
	}
	if next == "" {
		return fmt.Errorf("%s: %w", text, err)
	}
	return &agent.ExitError{Code: agent.ExitRefused, Err: fmt.Errorf("%s: %w: %s", text, err, next)}
}

func (f *forgetting) print(text string) error {
	err := say(f.out, text)
	if n := len(f.unassigned); n > 0 && err == nil {
		err = say(f.out, fmt.Sprintf("Topics that wait for a broker now (%d): %s.", n, someOf(f.unassigned)))
	}
	return err
}

// whatRemains is what of a broker is to go, in words.
func whatRemains(r cluster.Remains) string {
	var parts []string
	if r.Member != nil {
		parts = append(parts, "its member record")
	}
	switch {
	case r.StateMalformed != "":
		parts = append(parts, "its mode, which cannot be read")
	case r.State != nil:
		parts = append(parts, fmt.Sprintf("its mode, %s", withReason(r.State.Mode, r.State.Reason)))
	}
	var alone, also []string
	for _, t := range r.Topics {
		if t.Also == "" {
			alone = append(alone, t.Topic)
		} else {
			also = append(also, fmt.Sprintf("%s (%s)", t.Topic, t.Also))
		}
	}
	if len(alone) > 0 {
		parts = append(parts, fmt.Sprintf("its topics (%d): %s", len(alone), someOf(alone)))
	}
	if len(also) > 0 {
		parts = append(parts, fmt.Sprintf("topics that others have as well (%d): %s", len(also), someOf(also)))
	}
	return strings.Join(parts, "; ")
}

// someOf names the first of them.
func someOf(names []string) string {
	const most = 5
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	return strings.Join(names, ", ")
}
