package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
	"holdfast/cluster"
)

// The verbs that take the settings of run and need no sidecar.

func checkVerb() *cli.Command {
	return verb("check", func(c *cli.Context) error {
		settings, err := load(c)
		if err != nil {
			return err
		}
		findings := agent.Check(c.Context, settings, slog.New(slog.DiscardHandler))
		o := out(c)
		_ = agent.WriteFindings(o, findings)
		o.line("")
		_, _ = agent.WorstCase(settings).WriteTo(o)
		return agent.Verdict(findings)
	}, allSettings()...)
}

func etcdSettings() (names []string) {
	for _, s := range agent.Settings() {
		if s.Group == "etcd" {
			names = append(names, s.Name)
		}
	}
	return names
}

// reaching makes a verb that asks etcd, for a minute at most. only names the settings that say
// which etcd it is; where there is none, that is refused as without says.
func reaching(name, without string, bound time.Duration, only []string, do func(*cli.Context, *cluster.Client, agent.Config) error, flags ...cli.Flag) *cli.Command {
	return verb(name, func(c *cli.Context) error {
		settings, err := load(c, only...)
		switch {
		case err != nil:
			return err
		case settings.Unleased():
			return usage("--registration none: there is no etcd that knows %s", without)
		}
		cluster.Resolve(c.Context, settings.Cluster())
		ctx, cancel := context.WithTimeout(c.Context, bound)
		defer cancel()
		c.Context = ctx
		client, err := cluster.Open(settings.Cluster(), slog.New(slog.DiscardHandler))
		if err != nil {
			return usage("%w", err)
		}
		defer client.Close()
		return do(c, client, settings)
	}, append(flags, allSettings(only...)...)...)
}

func fleetVerb() *cli.Command {
	const without = "the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker"
	return reaching("fleet", without, askTimeout, etcdSettings(), func(c *cli.Context, client *cluster.Client, settings agent.Config) error {
		brokers, err := client.Fleet(c.Context)
		if err != nil {
			return agent.EtcdError(settings, err)
		}
		rows := fleetRows(brokers)
		raw, err := json.MarshalIndent(rows, "", "  ")
		if err != nil {
			return fmt.Errorf("encode fleet: %w", err)
		}
		return answer(c, raw, func(o *output) { writeFleet(o, rows, time.Now()) })
	}, outputFlag("table", "json"))
}

// fleetRow is one broker in the JSON of fleet. The field names are stable.
type fleetRow struct {
	BrokerID   string     `json:"broker_id"`      // in the keys of etcd
	Name       string     `json:"name,omitempty"` // its stable one, where that is another
	Registered bool       `json:"registered"`
	Epoch      int64      `json:"epoch"` // create revision of the registration; 0: not registered
	Mode       string     `json:"mode"`  // empty: nothing in etcd
	Reason     string     `json:"reason"`
	By         string     `json:"by"`
	Topics     int        `json:"topics"`                     // assigned, or served by locks of the broker's own
	Since      *time.Time `json:"since"`                      // when it registered last; null: not known
	BrokerURL  string     `json:"broker_url"`                 // advertised
	ConnectURL string     `json:"connect_url"`                // advertised
	Malformed  string     `json:"malformed_mode"`             // what stands in etcd instead of a mode
	Garbled    string     `json:"malformed_member,omitempty"` // and instead of a member record
}

func fleetRows(brokers []cluster.FleetBroker) []fleetRow {
	rows := make([]fleetRow, 0, len(brokers))
	for _, b := range brokers {
		r := fleetRow{
			BrokerID: b.BrokerID, Name: b.Name, Topics: b.Assignments, Malformed: b.StateMalformed, Garbled: b.MemberMalformed,
			BrokerURL: b.Value.BrokerURL, ConnectURL: b.Value.ConnectURL,
		}
		if b.Registration != nil {
			r.Registered, r.Epoch = true, b.Registration.CreateRevision
		}
		if b.State != nil {
			r.Mode, r.Reason, r.By = b.State.Mode, b.State.Reason, b.State.By
		}
		if b.Member != nil && !b.Member.At.IsZero() {
			r.Since = &b.Member.At
		}
		rows = append(rows, r)
	}
	return rows
}

// writeFleet prints how many of the brokers can serve, then one line each.
func writeFleet(o *output, rows []fleetRow, now time.Time) {
	if len(rows) == 0 {
		o.line("No broker is known in etcd here: check --etcd-endpoints and --prefix, or start one with 'holdfast run'.")
		return
	}
	registered, active, topics := 0, 0, 0
	table := [][]string{{"BROKER", "REGISTERED", "MODE", "REASON", "TOPICS", "EPOCH", "AGE"}}
	for _, r := range rows {
		id, yes, mode, epoch, since := r.BrokerID, "no", r.Mode, "-", "-"
		if r.Registered {
			yes, epoch = "yes", strconv.FormatInt(r.Epoch, 10)
			registered++
			if r.Since != nil {
				since = age(now, *r.Since)
			}
			if r.Mode == cluster.ModeActive {
				active++
			}
		} else if r.Topics > 0 {
			o.line("%s", o.bad(fmt.Sprintf("%s is NOT registered: nobody is known to serve its %d topics; if it will not come back: 'holdfast forget %s'.", id, r.Topics, id)))
		}
		if r.Malformed != "" {
			mode = "malformed"
		}
		if r.Name != "" {
			id += " (" + r.Name + ")"
		}
		topics += r.Topics
		table = append(table, []string{id, yes, or(mode, "-"), or(r.Reason, "-"), strconv.Itoa(r.Topics), epoch, since})
	}
	o.line("%d brokers: %d registered, %d of them active; %d topics assigned", len(rows), registered, active, topics)
	o.line("")
	o.table([]int{1, 2}, table)
	for _, r := range rows {
		if r.Malformed != "" {
			o.line("")
			o.line("The mode of %s cannot be read: %q. Set it again with 'holdfast drain' or 'holdfast activate' there.", r.BrokerID, strings.TrimSpace(r.Malformed))
		}
		if r.Garbled != "" {
			o.line("")
			o.line("The member record of %s cannot be read: %q. Its sidecar writes it anew when it registers, or is started again.", r.BrokerID, strings.TrimSpace(r.Garbled))
		}
	}
}
