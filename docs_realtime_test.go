package main

import (
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/agent"
	"holdfast/brokerapi"
	"holdfast/brokerapi/httpapi"
	"holdfast/cluster"
)

// capabilities asks the driver, without a broker.
func capabilities(t *testing.T, set map[string]string) brokerapi.Capabilities {
	t.Helper()
	c, err := agent.Load(agent.Sources{Flags: flags(set)})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	store, err := cluster.Open(c.Cluster(), log)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d, _ := agent.LookupDriver(c.Driver)
	b, err := d.New(c, store, log)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return b.Capabilities()
}

// brokerTable returns the cells of README's table of brokers, by the `name` in the first one.
func brokerTable(t *testing.T) map[string][]string {
	t.Helper()
	rows := map[string][]string{}
	quoted := regexp.MustCompile("`([^`]+)`")
	inside := false
	for line := range strings.Lines(read(t, "README.md")) {
		line = strings.TrimSpace(line)
		inside = strings.HasPrefix(line, "| | [") || inside && strings.HasPrefix(line, "|")
		if !inside || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name := cells[0]
		if names := quoted.FindAllStringSubmatch(name, -1); len(names) > 0 {
			name = names[len(names)-1][1]
		}
		if len(cells) != 1+len(columns) {
			t.Fatalf("row %q has %d cells, want %d", name, len(cells), 1+len(columns))
		}
		if rows[name] != nil {
			t.Errorf("row %q is there twice", name)
		}
		rows[name] = cells[1:]
	}
	return rows
}

func TestTheTableOfBrokersIsWhatTheDriversSay(t *testing.T) {
	rows := brokerTable(t)
	for i, col := range columns {
		if want := "](docs/brokers/" + col.page + ".md)"; len(rows[""]) == 0 || !strings.Contains(rows[""][i], want) {
			t.Fatalf("column %d does not link to the page %s", i+1, col.page)
		}
		if got, want := strings.Join(rows["--driver"], " "), "nats danube danube pulsar http"; strings.ReplaceAll(got, "`", "") != want {
			t.Fatalf("drivers %s, want %s", got, want)
		}
		if got, want := strings.ReplaceAll(rows["--registration"][i], "`", ""), strings.Join(col.registrations, ", "); got != want {
			t.Errorf("column %d: registration %s, want %s", i+1, got, want)
		}
		for _, registration := range col.registrations {
			set := map[string]string{"driver": col.driver, "registration": registration}
			for name, value := range col.set {
				if name != "broker-id" || registration == "adopt" {
					set[name] = value
				}
			}
			can := capabilities(t, set).List()
			for _, name := range allCapabilities() {
				if rows[name] == nil {
					t.Fatalf("no row for the capability %s", name)
				}
				want := ""
				switch {
				case slices.Contains(can, name):
					want = "yes"
				case col.driver == "http" && slices.Contains(httpapi.CapabilityNames(), name):
					want = "if set"
				}
				if got := rows[name][i]; got != want {
					t.Errorf("%s with --driver %s --registration %s: the table says %q, want %q", name, col.driver, registration, got, want)
				}
			}
		}
	}
	if want := 3 + len(allCapabilities()); len(rows) != want {
		t.Errorf("%d rows, want %d: one for each capability, the header, --driver and --registration", len(rows), want)
	}
}

// allCapabilities names every one that there is.
func allCapabilities() []string {
	var all brokerapi.Capabilities
	fields := reflect.ValueOf(&all).Elem()
	for i := range fields.NumField() {
		fields.Field(i).SetBool(true)
	}
	return all.List()
}

// A driver whose broker registers itself can adopt, one that knows its peers does without
// etcd, and no other.
func TestTheTableOfBrokersHasEveryRegistration(t *testing.T) {
	for i, col := range columns {
		set := map[string]string{"driver": col.driver, "registration": col.registrations[0]}
		for name, value := range col.set {
			set[name] = value
		}
		can := capabilities(t, set)
		if got := slices.Contains(col.registrations, "adopt"); got != can.Registers {
			t.Errorf("column %d: adopt is %v, registers-itself is %v", i+1, got, can.Registers)
		}
		if got := slices.Contains(col.registrations, "none"); got != can.Peers {
			t.Errorf("column %d: none is %v, peers is %v", i+1, got, can.Peers)
		}
	}
}
