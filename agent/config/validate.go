package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/brokerapi"
)

// minTTL is the smallest TTL that etcd grants with its default election timeout.
const minTTL = 2 * time.Second

// longTTL is more than anybody sleeps through: a longer one is warned of.
const longTTL = 10 * time.Minute

// Validate joins every problem with the settings, one line each: name, value,
// what is wrong and the remedy. It reads the files that are named, and nothing
// else outside of c.
func (c Config) Validate() error { return join(c.problems(), nil) }

// report collects problems about one Config.
type report struct {
	raw  Config // as given: zero may mean "derive"
	c    Config // effective
	list []problem
}

func (c Config) problems() []problem {
	r := &report{raw: c, c: c.Effective()}
	if r.c.Unleased() {
		r.unleased()
	} else {
		r.etcd()
	}
	r.broker()
	r.lease()
	r.recovery()
	r.topics()
	r.listeners()
	for _, s := range settings {
		r.alone(s)
	}
	return r.list
}

// alone checks a value as the setting is declared.
func (r *report) alone(s Setting) {
	if s.Driver != "" && s.Driver != r.c.Driver {
		if _, known := Drivers[r.c.Driver]; known && r.set(s.Name) {
			r.add(s.Name, "only the driver "+s.Driver+" has a use for it: leave it out", "driver")
		}
		return
	}
	if s.Group == "etcd" && r.c.Unleased() {
		return // refused as a whole
	}
	value := s.value(&r.c)
	if with, ok := lookup(s.with); ok && value != "" && with.value(&r.c) == "" {
		r.add(s.Name, "not without --"+s.with+": give that too", s.with)
	}
	switch known := s.choices(); {
	case value == "":
	case known != nil && !slices.Contains(known, value):
		r.add(s.Name, "unknown: write one of "+strings.Join(known, ", "))
	case s.Arg == "0..1" && !(s.number(r.c) >= 0 && s.number(r.c) <= 1):
		r.add(s.Name, "not between 0 and 1: write a share such as 0.5, or 0 to switch it off")
	case s.least != "" && s.number(r.c) < s.lowest():
		r.add(s.Name, "must be at least "+s.least)
	case s.read:
		r.file(s.Name, value)
	case s.schemes != "":
		r.url(s.Name, value, strings.Fields(strings.TrimPrefix(s.schemes, "any"))...)
	}
}

// add reports a problem with the setting name: where it was set, its value, text.
// others are the settings that the rule looks at too.
func (r *report) add(name, text string, others ...string) {
	r.list = append(r.list, problem{append([]string{name}, others...), r.show(name) + ": " + text})
}

// when adds a problem where there is one.
func (r *report) when(wrong bool, name, text string, others ...string) {
	if wrong {
		r.add(name, text, others...)
	}
}

// required reports a setting that nobody gave and that has no default.
func (r *report) required(missing bool, name, text string, others ...string) {
	if missing {
		r.list = append(r.list, problem{append([]string{name}, others...), "--" + name + ": required" + text})
	}
}

// show is the setting as the person wrote it: --lease-ttl 32s.
func (r *report) show(name string) string { return r.label(name) + " " + r.value(name) }

func (r *report) label(name string) string {
	if from, ok := r.raw.origins[name]; ok {
		return from
	}
	return "--" + name
}

func (r *report) value(name string) string {
	s, ok := lookup(name)
	if !ok {
		panic("no setting " + name)
	}
	v := s.value(&r.c)
	if k := s.kind.Kind(); k == reflect.String || k == reflect.Slice {
		return strconv.Quote(v)
	}
	return v
}

func (r *report) set(name string) bool { _, ok := r.raw.origins[name]; return ok }

func (r *report) etcd() {
	c := r.c
	r.when(len(c.EtcdEndpoints) == 0, "etcd-endpoints", "empty: give at least one URL, such as http://127.0.0.1:2379")
	secure, plain := 0, 0
	tls := c.EtcdCACert != "" || c.EtcdCert != "" || c.EtcdKey != ""
	for _, e := range c.EtcdEndpoints {
		if !r.url("etcd-endpoints", e, "http", "https") {
			continue
		}
		if strings.HasPrefix(e, "https://") {
			secure++
		} else {
			plain++
		}
		if tls && strings.HasPrefix(e, "http://") {
			r.list = append(r.list, problem{[]string{"etcd-endpoints", "etcd-cacert", "etcd-cert", "etcd-key"},
				fmt.Sprintf("%s %q: http with TLS files set: write https://, or leave out the etcd-cacert, etcd-cert and etcd-key settings", r.label("etcd-endpoints"), e)})
		}
	}
	r.when(secure > 0 && plain > 0 && !tls, "etcd-endpoints", "some use TLS and others do not: write https:// for all or for none")
	r.when(c.Prefix != "" && !strings.HasPrefix(c.Prefix, "/"), "prefix", "does not start with a slash: write /"+c.Prefix)
}

func (r *report) broker() {
	c := r.c
	known := strings.Join(DriverNames(), ", ")
	d, ok := Drivers[c.Driver]
	r.required(c.Driver == "", "driver", ": give the kind of broker; known drivers: "+known)
	r.when(c.Driver != "" && !ok, "driver", "unknown driver: known drivers: "+known)
	if ok && c.BrokerAdmin != "" {
		r.url("broker-admin", c.BrokerAdmin, d.AdminSchemes...)
	} else if ok {
		scheme := "http"
		if len(d.AdminSchemes) > 0 {
			scheme = d.AdminSchemes[0]
		}
		r.required(true, "broker-admin", fmt.Sprintf(" with the driver %s: give the URL of the broker's admin API, such as %s://127.0.0.1:8090", c.Driver, scheme))
	}
	if flaw := brokerapi.NameFlaw(c.BrokerID); flaw != "" {
		r.add("broker-id", flaw+": use another name")
	}
	r.adminAccess()
	if d.Check != nil {
		d.Check(r)
	}
	r.when(c.StopCommand != "" && strings.TrimSpace(c.StopCommand) == "", "stop-command", "only spaces: give a command, or leave it out")
	if len(c.Command) > 0 {
		const known = "the process of '-- CMD' is known without it: leave it out, or start the broker some other way and leave out '-- CMD'"
		r.when(c.BrokerPIDFile != "", "broker-pid-file", known)
		r.when(c.BrokerProcess != "", "broker-process", known)
	}
}

func (r *report) lease() {
	c := r.c
	r.stateDir()
	ttlOK := true
	switch {
	case c.LeaseTTL < minTTL:
		r.add("lease-ttl", "too short: etcd grants no less than "+FormatDuration(minTTL))
		ttlOK = false
	case c.LeaseTTL%time.Second != 0:
		r.add("lease-ttl", "not whole seconds, which is all that etcd knows: write "+FormatDuration(c.LeaseTTL.Round(time.Second)))
		ttlOK = false
	}
	marginOK := ttlOK
	switch {
	case r.raw.LeaseDetachMargin < 0, r.raw.LeaseDetachMargin == 0 && r.set("lease-detach-margin"):
		r.list = append(r.list, problem{[]string{"lease-detach-margin"}, fmt.Sprintf(
			"%s %s: must be more than 0: leave it out for a third of the TTL", r.label("lease-detach-margin"), FormatDuration(r.raw.LeaseDetachMargin))})
		marginOK = false
	case ttlOK && c.LeaseDetachMargin >= c.LeaseTTL:
		r.add("lease-detach-margin", fmt.Sprintf("must be less than %s: leave it out for a third of the TTL, %s",
			r.show("lease-ttl"), FormatDuration(c.LeaseTTL/3)), "lease-ttl")
		marginOK = false
	}
	r.when(c.BackoffInitial > 0 && c.BackoffMax < c.BackoffInitial, "backoff-max", "less than "+r.show("backoff-initial")+": give a longer one", "backoff-initial")
	if r.raw.RenewInterval < 0 || r.raw.RenewInterval == 0 && r.set("renew-interval") {
		r.list = append(r.list, problem{[]string{"renew-interval"}, fmt.Sprintf(
			"%s %s: must be more than 0: leave it out for an eighth of the TTL", r.label("renew-interval"), FormatDuration(r.raw.RenewInterval))})
	} else if marginOK && c.BackoffInitial > 0 {
		r.renewal()
	}
}

// renewal checks that a renewal which fails can be tried again before the fence
// point, and that try be answered.
func (r *report) renewal() {
	t := r.c.Timing()
	fence := t.TTL - t.Margin
	longest := t.LongestRenewInterval()
	if t.RenewInterval <= longest {
		return
	}
	if !r.set("renew-interval") && r.raw.RenewInterval == 0 { // it follows from the TTL, which is at fault
		ttl := r.shortestTTL()
		text := fmt.Sprintf("too short: a second renewal would not be answered before the fence point, %s after the last one", FormatDuration(fence))
		if ttl > 0 {
			text += ": give " + FormatDuration(ttl) + " or more"
			if r.set("lease-detach-margin") {
				text += ", or lower " + r.show("lease-detach-margin")
			}
		} else {
			text += ", and no TTL would do: lower " + r.show("lease-detach-margin") + " or " + r.show("backoff-initial")
		}
		r.add("lease-ttl", text, "lease-detach-margin", "backoff-initial", "renew-interval")
		return
	}
	others := []string{"lease-ttl", "lease-detach-margin", "backoff-initial"}
	retry := fmt.Sprintf("a second attempt would not be answered before the fence point, %s after the last renewal", FormatDuration(fence))
	if longest <= 0 {
		r.add("renew-interval", fmt.Sprintf("%s, and no interval would do: raise %s or lower %s",
			retry, r.show("lease-ttl"), r.show("lease-detach-margin")), others...)
		return
	}
	r.add("renew-interval", fmt.Sprintf("%s: at most %s works", retry, longest.Truncate(time.Millisecond)), others...)
}

// shortestTTL is the shortest with which the other settings work; 0: none up to an hour.
func (r *report) shortestTTL() time.Duration {
	for c := r.raw; c.LeaseTTL <= time.Hour; c.LeaseTTL += time.Second {
		if t := c.Timing(); t.Margin < t.TTL && t.RenewInterval <= t.LongestRenewInterval() {
			return c.LeaseTTL
		}
	}
	return 0
}

func (r *report) stateDir() {
	if r.c.StateDir == "" {
		r.add("state-dir", "empty: give a directory that survives restarts, such as /var/lib/holdfast")
		return
	}
	if info, err := os.Stat(r.c.StateDir); err == nil && !info.IsDir() {
		r.add("state-dir", "not a directory: give a directory that survives restarts")
	}
}

// WaysToStop is what makes the broker's process stoppable.
const WaysToStop = "give --broker-pid-file, --broker-process or --stop-command, or start the broker with 'holdfast run -- CMD'"

func (r *report) recovery() {
	c := r.c
	r.when(c.SessionExpiredPolicy == "shutdown" && !c.CanStop(), "session-expired-policy", "it stops the broker, and there is no way to: "+WaysToStop)
	switch {
	case c.SessionRetries > 0 && c.SessionExpiredPolicy != "reconnect":
		r.add("session-retries", "works only with reconnect: leave it out, or write --session-expired-policy reconnect", "session-expired-policy")
	case c.SessionRetries > 0 && !c.CanStop():
		r.add("session-retries", "the broker is stopped after that many, and there is no way to: "+WaysToStop)
	}
	switch {
	case c.RestartGrace > 0 && c.LeaseTTL > 0 && c.RestartGrace >= c.LeaseTTL:
		r.add("restart-grace", "no less than "+r.show("lease-ttl")+", after which the registration is gone anyway: give a shorter one or raise the TTL", "lease-ttl")
	case c.RestartGrace > 0 && !c.watchesProcess():
		r.add("restart-grace", "no process of the broker is watched, so one that only hangs would lose its registration and might serve on: "+
			"give --broker-pid-file or --broker-process, start the broker with 'holdfast run -- CMD', or leave it out", "broker-pid-file", "broker-process")
	}
	r.when(c.ReturnWithin > 0 && c.ReturnWithin < c.LeaveTimeout, "return-within", "less than "+r.show("leave-timeout")+", for which the broker's end is waited for: give at least as much, or lower that", "leave-timeout")
	stop := slices.Contains(c.Fence, "stop")
	switch strings.Join(c.Fence, ",") {
	case "ready,quiesce", "ready,quiesce,stop", "ready,stop":
		r.when(stop && !c.CanStop(), "fence", "the step stop needs a way to stop the broker: "+WaysToStop)
	default:
		r.when(!c.FencesItself() || len(c.Fence) != 1 || c.Fence[0] != "ready", "fence", "unknown steps or order: write ready,quiesce or ready,quiesce,stop")
	}
	switch {
	case c.Guard != "on", c.Unleased():
	case !c.Detach:
		r.add("guard", "nothing is fenced without detaching, so there is nothing to guard: leave out "+r.label("detach")+"=false", "fence", "detach")
	case stop && c.CanStop():
	case !c.CanStop():
		r.add("guard", "it needs a way to stop the broker: "+WaysToStop, "fence", "detach")
	default:
		r.add("guard", "it needs the fence step stop: write --fence ready,quiesce,stop", "fence", "detach")
	}
}

func (r *report) topics() {
	c := r.c
	// Effective settings have the driver's default, which nobody wrote.
	written := r.set("failover") || Drivers[c.Driver].Failover != "move"
	r.when(c.Failover == "move" && c.Assignment == "external" && written, "failover", "whoever assigns the topics moves them: leave it out, or write --assignment rendezvous", "assignment")
	if t := c.Traits(); (t.Places || t.Registers) && !c.Unleased() {
		const own = "this broker's own cluster says who serves a topic: leave it out"
		r.when(c.Assignment == "rendezvous", "assignment", own)
		r.when(c.OwnershipLocks == "on" && c.Assignment != "rendezvous", "ownership-locks", own)
	}
	r.when(c.OwnershipLocks == "off" && c.Assignment == "rendezvous", "ownership-locks", "rendezvous needs them, so that no topic has two brokers: leave it out", "assignment")
}

func (r *report) listeners() {
	c := r.c
	probe, web := r.listen("probe-listen", c.ProbeListen), r.listen("web-listen", c.WebListen)
	r.when(probe && web && c.ProbeListen == c.WebListen && !strings.HasSuffix(c.WebListen, ":0"), "web-listen", "the same as "+r.show("probe-listen")+": give each its own port", "probe-listen")
	r.webConfig()
	// 107 bytes and a zero byte is what sun_path holds on Linux; see unix(7).
	r.when(len(c.ControlSocket) > 107, "control-socket", fmt.Sprintf("%d bytes, and a unix socket has room for 107: give a shorter path", len(c.ControlSocket)), "state-dir")
}
