package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
	"holdfast/cluster"
)

const (
	// forgetTimeout bounds the whole: a cluster may have many assignments to look through.
	forgetTimeout = time.Minute
	// forgetTries is how often a broker is looked at anew that is not as it was seen.
	forgetTries = 4
)

func forgetVerb() *cli.Command {
	return reaching("forget", "this broker: nothing to forget", forgetTimeout, append(etcdSettings(), "driver", "registration"),
		func(c *cli.Context, client *cluster.Client, settings agent.Config) error {
			f := forgetting{client: client, c: settings, out: out(c), id: c.Args().First()}
			return f.run(c.Context, c.Bool("dry-run"))
		}, &cli.BoolFlag{Name: "dry-run", Usage: "say what would be done, and do nothing"})
}

// forgetting is one use of the verb.
type forgetting struct {
	client     *cluster.Client
	c          agent.Config
	out        *output
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
			f.print("would be")
			return nil
		}
		gone, err := f.client.Forget(ctx, seen)
		f.unassigned = append(f.unassigned, gone...)
		switch {
		case err == nil:
			f.print("is")
			return nil
		case !errors.Is(err, cluster.ErrChanged) || tries == forgetTries:
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
	if n := len(f.unassigned); n > 0 {
		text += fmt.Sprintf(": topics that are unassigned already (%d): %s; the rest is as it was", n, someOf(f.unassigned))
	}
	for cause, next := range inTheWay {
		if errors.Is(err, cause) {
			return &agent.ExitError{Code: agent.ExitRefused, Err: fmt.Errorf("%s: %w: %s", text, err, next)}
		}
	}
	return fmt.Errorf("%s: %w", text, agent.EtcdError(f.c, err))
}

func (f *forgetting) print(done string) {
	f.out.line("%s %s forgotten: %s.", f.id, done, f.what)
	if n := len(f.unassigned); n > 0 {
		f.out.line("Topics that wait for a broker now (%d): %s.", n, someOf(f.unassigned))
	}
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
