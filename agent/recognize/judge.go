package recognize

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast/agent/config"
	"holdfast/brokerapi"
	"holdfast/probes"
)

// Process gathers what can be known of the process and judges it. why is one
// sentence for people; with IsForeign it names the remedy.
func Process(ctx context.Context, c config.Config, seen probes.ProcessView, who brokerapi.Report) (verdict Verdict, why string) {
	holding, holder := probes.ListensAt(ctx, seen.Pid, adminAddrs(ctx, c))
	verdict = recognize(recognitionFacts{Started: seen.StartedAt, Stated: who.StartedAt,
		Holding: holding, Holder: holder.StartedAt, Twins: holder.Name == seen.Name})
	var said []string
	if !who.StartedAt.IsZero() && clockTime(seen.StartedAt) != clockTime(who.StartedAt) {
		said = append(said, fmt.Sprintf("it started at %s, the broker says %s", clockTime(seen.StartedAt), clockTime(who.StartedAt)))
	}
	switch holding {
	case probes.HoldingAnother:
		said = append(said, fmt.Sprintf("the admin port is held by process %d (%s)", holder.Pid, holder.Name))
	case probes.HoldingNo:
		said = append(said, "it does not hold the admin port")
	case probes.HoldingUnknown:
		said = append(said, "who holds the admin port is not seen from here")
	}
	why = strings.Join(said, ", and ")
	if verdict == IsForeign {
		where, remedy := "--broker-pid-file "+c.BrokerPIDFile, "give the pid file that this broker writes"
		if c.BrokerPIDFile == "" {
			where, remedy = "--broker-process "+c.BrokerProcess, "give --broker-pid-file"
		}
		why = fmt.Sprintf("%s: process %d (%s) is not the broker that answers at %s: %s: %s",
			where, seen.Pid, seen.Name, c.BrokerAdmin, why, remedy)
	}
	return verdict, why
}

func clockTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// adminPatience bounds the question what addresses the admin host has.
const adminPatience = time.Second

// schemePorts are those of a URL that has none.
var schemePorts = map[string]uint16{"http": 80, "https": 443}

// adminAddrs are the addresses behind --broker-admin; none: it is no TCP address, or its
// name is not known.
func adminAddrs(ctx context.Context, c config.Config) (at []netip.AddrPort) {
	host, port, ok := AdminAddress(c)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adminPatience)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		at = append(at, netip.AddrPortFrom(a.Unmap(), port))
	}
	return at
}

func AdminAddress(c config.Config) (host string, port uint16, ok bool) {
	u, err := url.Parse(c.BrokerAdmin)
	if err != nil || u.Hostname() == "" {
		return "", 0, false
	}
	n := uint64(cmp.Or(schemePorts[u.Scheme], config.Drivers[c.Driver].Port))
	if p := u.Port(); p != "" {
		n, err = strconv.ParseUint(p, 10, 16)
	}
	return u.Hostname(), uint16(n), err == nil
}

// Verdict says whether a process that a pid file or a name led to is the broker
// that answers at the admin address.
type Verdict int

const (
	Unknown Verdict = iota // it cannot be told: it is believed, with a warning
	IsBroker
	IsForeign // it is never signaled, and its end proves nothing
)

func (r Verdict) String() string { return [...]string{"unknown", "broker", "foreign"}[r] }

// startTolerance is by how much a process's start, as the kernel counts it, and the
// start that the broker states may differ: a script that becomes the broker, a clock
// that is being slewed.
const startTolerance = 10 * time.Second

// recognitionFacts are what is known of such a process.
type recognitionFacts struct {
	Started time.Time // the process, by the kernel
	Stated  time.Time // the broker that answers, by itself; zero: it does not say
	Holding probes.Holding
	Holder  time.Time // with HoldingAnother: when that one started
	Twins   bool      // and both are called the same
}

// recognize judges. Who holds the socket of the admin address counts most: a wall clock
// that was set falsifies the start times. Another holder alone contradicts nothing, since
// a proxy may stand before the broker; one whose start fits better does.
func recognize(f recognitionFacts) Verdict {
	if f.Holding == probes.HoldingYes {
		return IsBroker
	}
	if f.Holding == probes.HoldingAnother && f.Twins {
		return IsForeign // the broker next to this one; no proxy is called like the broker
	}
	if f.Started.IsZero() || f.Stated.IsZero() {
		return Unknown
	}
	apart := f.Started.Sub(f.Stated).Abs()
	switch {
	case apart > startTolerance:
		return IsForeign
	case f.Holding == probes.HoldingAnother && f.Holder.Sub(f.Stated).Abs() < apart:
		return IsForeign
	case f.Holding == probes.HoldingUnknown:
		return IsBroker
	}
	return Unknown
}
