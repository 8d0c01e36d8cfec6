package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"holdfast/agent"
	"holdfast/cluster"
)

// The verbs that take the settings of run and need no sidecar.

func check(c call) error {
	findings := agent.Check(c.Context, c.settings, slog.New(slog.DiscardHandler))
	_ = agent.WriteFindings(c.out(), findings)
	c.out().line("")
	_, _ = agent.WorstCase(c.settings).WriteTo(c.out())
	return agent.Verdict(findings)
}

func etcdSettings() (names []string) {
	for _, s := range agent.Settings() {
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
		return agent.EtcdError(c.settings, err)
	}
	raw, err := json.MarshalIndent(brokers, "", "  ")
	return c.answer(raw, err, func(o *output) { writeFleet(o, brokers, time.Now()) })
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
		} else if b.Topics > 0 {
			o.line("%s is NOT registered: nobody is known to serve its %d topics; if it will not come back: 'holdfast forget %s'.", id, b.Topics, id)
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
	o.line("%d brokers: %d registered, %d of them active; %d topics assigned", len(brokers), registered, active, topics)
	o.line("")
	o.table(table)
	for _, note := range notes {
		o.line("")
		o.line("%s", note)
	}
}
