package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/agent"
	"holdfast/cluster"
)

// The verbs that take the settings of run and need no sidecar.

func checkVerb() *verb {
	return &verb{
		name:   "check",
		args:   "[-- CMD ARG…]",
		starts: true,
		short:  "would these settings work, and what do they promise",
		long: "Validates the settings, reaches etcd, if there is one, and the broker, says what a start would\n" +
			"decide now and why (or what the sidecar holds that runs), and prints the worst case that follows\n" +
			"from the timing. Writes nothing, and needs no right that 'run' has not. Exit code 2: a setting is\n" +
			"wrong; 3: the settings are unsafe; 1: etcd or the broker is not there now. Takes the settings of\n" +
			"'holdfast run'.",
		flags: settingOptions(),
		do: func(ctx context.Context, v *verb, io streams, command []string) error {
			c, err := v.flags.loadFor(command)
			if err != nil {
				return err
			}
			findings := agent.Check(ctx, c, slog.New(slog.DiscardHandler))
			unprinted := printCheck(io.out, c, findings)
			if err := agent.Verdict(findings); err != nil { // also where nobody reads the rest
				return err
			}
			return unprinted
		},
	}
}

func printCheck(w io.Writer, c agent.Config, findings []agent.Finding) error {
	if err := agent.WriteFindings(w, findings); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("print findings: %w", err)
	}
	if _, err := agent.WorstCase(c).WriteTo(w); err != nil {
		return fmt.Errorf("print timeline: %w", err)
	}
	return nil
}

func etcdSettings() []string {
	var names []string
	for _, s := range agent.Settings() {
		if s.Group == "etcd" {
			names = append(names, s.Name)
		}
	}
	return names
}

// onlyShown hides all settings but those.
func onlyShown(opts options, names []string) options {
	for _, o := range opts {
		o.hidden = o.setting && !slices.Contains(names, o.name)
	}
	return opts
}

func fleetVerb() *verb {
	return &verb{
		name:  "fleet",
		short: "every broker of the cluster, from etcd",
		long: "Reads every broker that is registered, or has a mode, a member record or topics, at one\n" +
			"revision of etcd. The other settings of 'holdfast run' are taken too, and not looked at.",
		flags: append(options{outputOption("table", "json")}, onlyShown(settingOptions(), etcdSettings())...),
		do: func(ctx context.Context, v *verb, io streams, _ []string) error {
			asJSON, err := v.wantsJSON()
			if err != nil {
				return err
			}
			c, err := v.flags.load(etcdSettings()...)
			if err != nil {
				return err
			}
			if c.Unleased() {
				return usage("--registration none: there is no etcd that knows the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker")
			}
			cluster.Resolve(ctx, c.Cluster())
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			client, err := cluster.Open(c.Cluster(), slog.New(slog.DiscardHandler))
			if err != nil {
				return usage("%w", err)
			}
			defer client.Close()
			brokers, err := client.Fleet(ctx)
			if err != nil {
				return agent.EtcdError(c, err)
			}
			rows := fleetRows(brokers)
			if asJSON {
				raw, err := json.MarshalIndent(rows, "", "  ")
				if err != nil {
					return fmt.Errorf("encode fleet: %w", err)
				}
				return printJSON(io.out, raw)
			}
			return writeFleet(io.out, rows, time.Now(), painterFor(io.out))
		},
	}
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
func writeFleet(w io.Writer, rows []fleetRow, now time.Time, p painter) error {
	registered, active, topics := 0, 0, 0
	var ownerless []string
	t := table{head: []string{"BROKER", "REGISTERED", "MODE", "REASON", "TOPICS", "EPOCH", "AGE"}}
	for i := range rows {
		rows[i].BrokerID = agent.Plain(rows[i].BrokerID)
	}
	for _, r := range rows {
		yes, mode, epoch, since := "no", r.Mode, "-", "-"
		if r.Registered {
			yes, epoch = "yes", strconv.FormatInt(r.Epoch, 10)
			registered++
			if r.Since != nil {
				since = age(now, *r.Since)
			}
			if r.Mode == cluster.ModeActive {
				active++
			}
		}
		if !r.Registered && r.Topics > 0 {
			ownerless = append(ownerless, fmt.Sprintf("%s is NOT registered: nobody is known to serve its %d topics; if it will not come back: 'holdfast forget %s'.", r.BrokerID, r.Topics, r.BrokerID))
		}
		if r.Malformed != "" {
			mode = "malformed"
		}
		topics += r.Topics
		id := r.BrokerID
		if r.Name != "" {
			id += " (" + r.Name + ")"
		}
		t.add(id, yes, dash(mode), dash(r.Reason), strconv.Itoa(r.Topics), epoch, since)
	}
	t.paint = func(column int, s string) string {
		if column == 1 || column == 2 {
			return p.state(s)
		}
		return s
	}
	text := "No broker is known in etcd here: check --etcd-endpoints and --prefix, or start one with 'holdfast run'.\n"
	if len(rows) > 0 {
		text = fmt.Sprintf("%d brokers: %d registered, %d of them active; %d topics assigned\n\n%s", len(rows), registered, active, topics, t.String())
		if len(ownerless) > 0 {
			text = p.bad(strings.Join(ownerless, "\n")) + "\n" + text
		}
		if i := slices.IndexFunc(rows, func(r fleetRow) bool { return r.Malformed != "" }); i >= 0 {
			text += fmt.Sprintf("\nThe mode of %s cannot be read: %q. Set it again with 'holdfast drain' or 'holdfast activate' there.\n",
				rows[i].BrokerID, strings.TrimSpace(rows[i].Malformed))
		}
		for _, r := range rows {
			if r.Garbled != "" {
				text += fmt.Sprintf("\nThe member record of %s cannot be read: %q. Its sidecar writes it anew when it registers, or is started again.\n", r.BrokerID, strings.TrimSpace(r.Garbled))
			}
		}
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print fleet: %w", err)
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
