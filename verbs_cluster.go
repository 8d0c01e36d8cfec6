package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"holdfast/agent"
	"holdfast/agent/check"
	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/cluster"
)

// The verbs that take the settings of run and need no sidecar.

func checkAll(c call) error {
	findings := agent.Check(c.Context, c.settings, slog.New(slog.DiscardHandler))
	check.Write(c.out(), findings)
	c.out().line("")
	_, _ = check.WorstCase(c.settings).WriteTo(c.out())
	return check.Verdict(findings)
}

func etcdSettings() (names []string) {
	for _, s := range config.Settings() {
		if s.Group == "etcd" {
			names = append(names, s.Name)
		}
	}
	return names
}

// etcd opens a way there. Where there is none, that is refused as without says.
func (c call) etcd(without string) (*cluster.Client, error) {
	if c.settings.Unleased() {
		return nil, usage("--registration none: there is no etcd that knows %s", without)
	}
	cluster.Resolve(c.Context, c.settings.Cluster())
	client, err := cluster.Open(c.settings.Cluster(), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, usage("%w", err)
	}
	return client, nil
}

func fleet(c call) error {
	client, err := c.etcd("the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker")
	if err != nil {
		return err
	}
	defer client.Close()
	brokers, err := client.Fleet(c.Context)
	if err != nil {
		return control.EtcdError(c.settings, err)
	}
	journals := map[string]cluster.KV{}
	unread := client.Moves(c.Context, func(topic string, journal cluster.KV) { journals[topic] = journal })
	raw, err := json.MarshalIndent(brokers, "", "  ")
	return c.answer(raw, err, func(o *output) {
		writeFleet(o, brokers, time.Now())
		if unread != nil {
			o.line("Whether topics are being moved is not known: %v", control.EtcdError(c.settings, unread))
		}
		writeFleetMoves(o, brokers, journals)
	})
}

// writeFleet prints how many of the brokers can serve, then one line each.
func writeFleet(o *output, brokers []cluster.FleetBroker, now time.Time) {
	if len(brokers) == 0 {
		o.line("No broker is known in etcd here: check --etcd-endpoints and --prefix, or start one with 'holdfast run'.")
		return
	}
	registered, active, topics := 0, 0, 0
	table, notes := [][]string{{"BROKER", "REGISTERED", "MODE", "REASON", "TOPICS", "EPOCH", "AGE"}}, []string(nil)
	for _, b := range brokers {
		id, yes, mode, epoch, since := b.BrokerID, "no", b.Mode, "-", "-"
		if b.Registered {
			yes, epoch = "yes", strconv.FormatInt(b.Epoch, 10)
			registered++
			if b.Since != nil {
				since = age(now, *b.Since)
			}
			if b.Mode == cluster.ModeActive {
				active++
			}
		} else if b.Left != nil {
			o.line("%s is NOT registered: it left on purpose %s ago, and its topics (%d) wait for it; if it will not come back: 'holdfast forget %s'.", id, age(now, *b.Left), b.Topics, id)
		} else if b.Topics > 0 {
			o.line("%s is NOT registered: nobody is known to serve its topics (%d); if it will not come back: 'holdfast forget %s'.", id, b.Topics, id)
		}
		if len(b.Shared) > 0 {
			notes = append(notes, fmt.Sprintf("%s of %s: assigned to another broker, too, and served by both unless they take ownership locks: delete one of the two keys: %s",
				control.Plural(len(b.Shared), "topic"), id, strings.Join(b.Shared[:min(len(b.Shared), 5)], ", ")))
		}
		if b.StateMalformed != "" {
			mode = "malformed"
			notes = append(notes, fmt.Sprintf("The mode of %s cannot be read: %q. Set it again with 'holdfast drain' or 'holdfast activate' there.", id, strings.TrimSpace(b.StateMalformed)))
		}
		if b.MemberMalformed != "" {
			notes = append(notes, fmt.Sprintf("The member record of %s cannot be read: %q. Its sidecar writes it anew when it registers, or is started again.", id, strings.TrimSpace(b.MemberMalformed)))
		}
		if b.Name != "" {
			id += " (" + b.Name + ")"
		}
		topics += b.Topics
		table = append(table, []string{id, yes, cmp.Or(mode, "-"), cmp.Or(b.Reason, "-"), strconv.Itoa(b.Topics), epoch, since})
	}
	o.line("%s: %d registered, %d of them active; %s assigned", control.Plural(len(brokers), "broker"), registered, active, control.Plural(topics, "topic"))
	o.line("")
	o.table(table)
	for _, note := range notes {
		o.line("")
		o.line("%s", note)
	}
}

func forget(c call) error {
	client, err := c.etcd("this broker: nothing to forget")
	if err != nil {
		return err
	}
	defer client.Close()
	return c.forget(client, c.Args().First(), c.Bool("dry-run"))
}

func (c call) forget(client *cluster.Client, id string, dry bool) error {
	seen, err := client.Remains(c.Context, id)
	if err != nil {
		return c.notForgotten(id, err, nil)
	}
	if !seen.Any() {
		return fmt.Errorf("forget %s: etcd knows no such broker below --prefix %q: 'holdfast fleet' lists those that it knows", id, c.settings.Prefix)
	}
	what := whatRemains(seen)
	if dry {
		c.out().line("%s would be forgotten: %s.", id, what)
		return nil
	}
	unassigned, err := client.Forget(c.Context, seen)
	if err != nil {
		return c.notForgotten(id, err, unassigned)
	}
	c.out().line("%s is forgotten: %s.", id, what)
	if len(unassigned) > 0 {
		c.out().line("%s.", counted("Topics that wait for a broker now", unassigned))
	}
	return nil
}

// inTheWay says what to do about what keeps a broker from being forgotten.
var inTheWay = map[error]string{
	cluster.ErrRegistered: "stop the broker and its sidecar, or wait until the lease has ended; if the broker is gone and no lease ends it, delete the key",
	cluster.ErrHolds:      "wait until its lease has ended, or delete what it says if the broker is gone",
	cluster.ErrUnreadable: "under which id it is registered is not known; if the broker is gone, delete the key",
	cluster.ErrChanged:    "it was changed meanwhile: try again, and find out who goes on changing it",
}

// notForgotten says what is in the way, and what was done before.
func (c call) notForgotten(id string, err error, unassigned []string) error {
	text := "forget " + id
	if len(unassigned) > 0 {
		text += ": " + counted("topics that are unassigned already", unassigned) + "; the rest is as it was"
	}
	for cause, next := range inTheWay {
		if errors.Is(err, cause) {
			return &control.ExitError{Code: control.ExitRefused, Err: fmt.Errorf("%s: %w: %s", text, err, next)}
		}
	}
	return fmt.Errorf("%s: %w", text, control.EtcdError(c.settings, err))
}

// whatRemains is what of a broker is to go, in words.
func whatRemains(r cluster.Remains) string {
	var parts, topics []string
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
		also := ""
		if t.Also != "" {
			also = t.Also + " has it as well"
		}
		topics = append(topics, withReason(t.Topic, also))
	}
	if len(topics) > 0 {
		parts = append(parts, counted("its topics", topics))
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
