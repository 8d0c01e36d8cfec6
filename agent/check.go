package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/guard"
	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/probes"
)

// checkTimeout bounds each of the things that Check tries.
const checkTimeout = 3 * time.Second

// Finding is one thing that Check tried.
type Finding struct {
	What string // etcd, broker, data dir, start, timing
	// Err is nil when all is well. An *ExitError with ExitUsage says that a setting
	// is wrong, with ExitRefused that it is unsafe; any other that it failed now.
	Err  error
	Text string // what was found; shown when Err is nil
	Warn bool   // it works, and not as it should
}

// Check tries valid settings against the world and writes no key of etcd, and nothing to the
// broker. Each part is bounded by three seconds, each of its questions where
// one rests on another.
func Check(ctx context.Context, c config.Config, log *slog.Logger) []Finding {
	c = c.Effective()
	id, broker := checkBroker(ctx, c, log)
	if c.BrokerID == "" {
		c.BrokerID = id.Name
	}
	if c.DataDir == "" {
		c.DataDir = id.DataDir
	}
	registered := c.BrokerID
	if c.Traits().Registers {
		registered = id.Instance
	}
	findings := []Finding{checkUnleased(c)}
	if !c.Unleased() {
		findings = checkEtcd(ctx, c, registered, log)
	}
	findings = append(findings, broker)
	if c.DataDir != "" || broker.Err == nil {
		findings = append(findings, checkDataDir(c, id.DataDir))
	}
	findings = append(findings, checkStateDir(c))
	if !c.Unleased() && findings[0].Err == nil && !isSetting(broker.Err) {
		findings = append(findings, checkStart(ctx, c, id, broker.Err == nil, log))
	}
	if f, ok := checkWeb(c); ok {
		findings = append(findings, f)
	}
	for _, w := range c.Warnings() {
		findings = append(findings, Finding{What: "settings", Warn: true, Text: w})
	}
	if c.Traits().AtDeadline == brokerapi.Stop && !c.Shadow {
		findings = append(findings, checkMustStop(c, c.Traits()))
	}
	if f, so := checkFencesItself(c); so && !c.Shadow {
		findings = append(findings, f)
	}
	if c.Failover == "move" && c.Traits().LocalData {
		findings = append(findings, Finding{What: "failover", Warn: true, Text: movesWithoutData})
	}
	for _, n := range id.Notes {
		findings = append(findings, Finding{What: n.Kind, Warn: true, Text: n.Text})
	}
	unstoppable, unseen := false, "; in a pod, set shareProcessNamespace: true"
	if c.CanStop() {
		f := checkProcess(c, log)
		if f.Err == nil && broker.Err == nil {
			f = recognizeFinding(ctx, c, f, id)
		}
		findings = append(findings, f)
		var exit *control.ExitError
		foreign := errors.As(f.Err, &exit) && exit.Code == control.ExitRefused
		unstoppable = foreign || f.Err != nil && broker.Err == nil && c.StopCommand == ""
		if errors.Is(f.Err, unix.EPERM) {
			unstoppable, unseen = true, ""
		}
	}
	switch {
	case c.Shadow, c.Unleased():
	case c.Guard == "on" && unstoppable:
		findings = append(findings, Finding{What: "guard", Warn: true, Text: "would stop nothing: see process" + unseen})
	case c.Guard == "on":
		findings = append(findings, checkGuard(c))
	default:
		findings = append(findings, unguarded(c))
	}
	for _, u := range WorstCase(c).Unsafe {
		findings = append(findings, Finding{What: "timing", Err: control.Refused(u)})
	}
	return findings
}

// checkUnleased says what it means that there is no etcd.
func checkUnleased(c config.Config) Finding {
	return Finding{What: "lease", Text: fmt.Sprintf("none, and no etcd (--registration none): the broker's own cluster keeps its registration. "+
		"Nothing has a deadline, no lease fences the broker, and the guard is off. A broker that was away for longer than --lease-ttl %s comes back drained if others are active: "+
		"give the time after which its own cluster declares it dead", config.FormatDuration(c.LeaseTTL))}
}

// openBroker makes the driver, with a store of its own to read from.
func openBroker(c config.Config, log *slog.Logger) (b brokerapi.Broker, closeAll func(), err error) {
	d, ok := config.Drivers[c.Driver]
	if !ok {
		return nil, nil, fmt.Errorf("--driver %q: unknown driver: known drivers: %s", c.Driver, strings.Join(config.DriverNames(), ", "))
	}
	var store *cluster.Client
	closeStore := func() error { return nil }
	if !c.Unleased() {
		if store, err = cluster.Open(c.Cluster(), log); err != nil {
			return nil, nil, err
		}
		closeStore = store.Close
	}
	if b, err = d.New(c, store, log); err != nil {
		return nil, nil, errors.Join(err, closeStore())
	}
	return b, func() { b.Close(); closeStore() }, nil
}

// EtcdError puts a failed call into one line with the settings to look at. Wrong
// credentials are wrong settings.
func EtcdError(c config.Config, err error) error {
	where := whereEtcd(c)
	if cluster.Unresolved(err) {
		return fmt.Errorf("%s: %w: check the name, and the nameservers in /etc/resolv.conf", where, &shortError{err})
	}
	switch class := cluster.Classify(err); class {
	case cluster.ClassAuth:
		return control.UsageError(explainAuth(c, &shortError{err}))
	case cluster.ClassNoLeader:
		return fmt.Errorf("%s: etcd has no leader: %w: check the quorum of etcd", where, err)
	case cluster.ClassOverloaded:
		return fmt.Errorf("%s: etcd cannot keep up: %w: look at its disk and its load", where, err)
	case cluster.ClassNoSpace:
		return fmt.Errorf("%s: etcd takes no writes: %w: compact and defragment it, then 'etcdctl alarm disarm'", where, err)
	case cluster.ClassUnreachable, cluster.ClassTimeout:
		return fmt.Errorf("%s: etcd is out of reach: %w: is it running there, and is the way open?", where, &shortError{err})
	default:
		return fmt.Errorf("%s: %w: see the log of etcd", where, err)
	}
}

func whereEtcd(c config.Config) string {
	return fmt.Sprintf("--etcd-endpoints %q", strings.Join(c.EtcdEndpoints, ","))
}

// explainAuth says who or what etcd does not take, and what to do. It goes by the words of the error.
func explainAuth(c config.Config, why *shortError) error {
	switch denied := strings.HasPrefix(why.Error(), "permission denied"); {
	case strings.Contains(why.err.Error(), cluster.RefusedConnection):
		return fmt.Errorf("%s: no connection: %w", whereEtcd(c), why)
	case denied && c.EtcdUser == "":
		return fmt.Errorf("%s: etcd refuses the user of --etcd-cert %s (its CN): %w: see docs/security.md", whereEtcd(c), c.EtcdCert, why)
	case denied:
		return fmt.Errorf("--etcd-user %q: etcd refuses it: %w: see docs/security.md", c.EtcdUser, why)
	case c.EtcdUser == "":
		return fmt.Errorf("%s: etcd refuses us: %w: set --etcd-user and --etcd-password-file, or --etcd-cert and --etcd-key", whereEtcd(c), why)
	}
	return fmt.Errorf("--etcd-user %q: etcd refuses us: %w: check --etcd-password-file %q", c.EtcdUser, why, c.EtcdPasswordFile)
}

// misdirected is what gRPC says of a connection to what is not etcd, and what that means. The first that
// fits counts.
var misdirected = [][2]string{
	{"HTTP/1.1 header", "what answers speaks HTTP/1.1: that is not etcd's client port (2379)"},
	{"handshake failed: EOF", "it ends the connection in the TLS handshake"},
	{"error reading server preface", "it takes connections and does not greet as etcd's client port (2379) does"},
}

// shortError leaves out what stands around the cause: what gRPC says of a failed
// dial or call, and which of our calls it was that etcd refused.
type shortError struct{ err error }

func (e *shortError) Error() string {
	text := e.err.Error()
	for _, known := range misdirected {
		if strings.Contains(text, known[0]) {
			return known[1]
		}
	}
	for _, noise := range []string{cluster.RefusedConnection, "Error while dialing: ", "etcdserver: ", "desc = "} {
		if i := strings.LastIndex(text, noise); i >= 0 {
			return strings.Trim(text[i+len(noise):], `"`)
		}
	}
	return text
}

func (e *shortError) Unwrap() error { return e.err }

func checkBroker(ctx context.Context, c config.Config, log *slog.Logger) (brokerapi.Report, Finding) {
	f := Finding{What: "broker"}
	b, closeBroker, err := openBroker(c, log)
	if err != nil {
		f.Err = control.UsageError(err)
		return brokerapi.Report{}, f
	}
	defer closeBroker()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	id, err := b.Probe(ctx)
	for err == nil && errors.Is(id.Unable, brokerapi.ErrUntried) && ctx.Err() == nil {
		probes.Sleep(ctx, 100*time.Millisecond)
		id, err = b.Probe(ctx)
	}
	switch {
	case errors.Is(err, brokerapi.ErrIdentity), errors.Is(err, brokerapi.ErrLogin):
		f.Err = control.UsageError(err)
		return id, f
	case err != nil && id.Instance == "":
		f.Err = fmt.Errorf("broker: %w", err)
		return id, f
	}
	name, flaw := newIdentityCheck(b, c, "").name(id)
	if flaw != nil {
		f.Err = control.UsageError(flaw)
		id.Name = "" // nothing may be looked for under it
		return id, f
	}
	f.Text = fmt.Sprintf("%s %s %s", name, c.Driver, id.Version)
	if _, ok := b.(brokerapi.ModeSetter); ok {
		f.Text += "; can: steer"
	}
	if has := c.Traits().List(); len(has) > 0 {
		f.Text += "; has: " + strings.Join(has, ", ")
	}
	if err == nil && c.Traits().LocalData {
		if held, unlisted := b.Topics(ctx); unlisted == nil && len(held.Foreign) > 0 {
			f.Warn = true
			f.Text += fmt.Sprintf("; no topics of Holdfast, so neither fenced nor drained (%d): %.200s", len(held.Foreign), strings.Join(held.Foreign, ", "))
		}
	}
	if err = cmp.Or(err, id.Unable); err != nil {
		f.Err = fmt.Errorf("broker %s: not healthy: %w", name, err)
		if errors.Is(err, brokerapi.ErrLogin) {
			f.Err = control.UsageError(f.Err)
		}
	}
	return id, f
}

// isSetting reports whether other settings are needed.
func isSetting(err error) bool {
	var exit *control.ExitError
	return errors.As(err, &exit) && exit.Code == control.ExitUsage
}

func checkDataDir(c config.Config, stated string) Finding {
	f := Finding{What: "data dir", Text: c.DataDir}
	if c.DataDir == "" {
		f.Text = "not known: the broker does not state it; give --data-dir to tell a first boot from a restart"
		return f
	}
	if err := probes.CheckReadable(c.DataDir); err != nil {
		f.Err = control.UsageError(err)
	} else if text := elsewhere(c.DataDir, stated); text != "" {
		f.Warn, f.Text = true, text
	} else if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		f.Warn = true
		f.Text += "; not there: if the broker has data elsewhere, a restart is taken for a first boot; give the directory that it uses"
	}
	return f
}

// checkStateDir tries what 'run' needs, and leaves nothing behind.
func checkStateDir(c config.Config) Finding {
	f := Finding{What: "state dir", Text: c.StateDir}
	if pid := control.LockHolder(c.StateDir); pid != 0 {
		f.Text += fmt.Sprintf("; in use by process %d now", pid)
	} else if left, ok := guard.StandingOf(c.StateDir); ok {
		f.Warn = true
		f.Text += fmt.Sprintf("; no sidecar runs, and %s: 'holdfast run' takes it over; %s", left, left.Hint())
	}
	dir := c.StateDir
	for {
		if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	if dir != c.StateDir {
		f.Text += "; to be created"
	}
	if err := tryWrite(dir); err != nil {
		f.Err = control.UsageError(fmt.Errorf("--state-dir %s: %s: free space there, or make it writable for this user, or set --state-dir", c.StateDir, config.Cause(err)))
	}
	return f
}

// tryWrite writes as much as a state file is, since a disk may have room for a name and for
// nothing else, and removes it.
func tryWrite(dir string) error {
	probe, err := os.CreateTemp(dir, ".holdfast-check-")
	if err != nil {
		return err
	}
	_, err = probe.Write(make([]byte, 8<<10))
	return cmp.Or(err, probe.Sync(), probe.Close(), os.Remove(probe.Name()))
}

// WriteFindings prints one line for each finding.
func WriteFindings(w io.Writer, findings []Finding) error {
	for _, f := range findings {
		verdict, text := "ok", f.Text
		switch {
		case f.Err != nil:
			verdict, text = "FAILED", "see below"
		case f.Warn:
			verdict = "warning"
		}
		if _, err := fmt.Fprintf(w, "%-9s %-7s %s\n", f.What, verdict, control.Plain(text)); err != nil {
			return fmt.Errorf("print findings: %w", err)
		}
	}
	return nil
}

// Verdict joins the errors of findings. Its exit code is that of a wrong setting
// if there is one, else of an unsafe one, else of a failure; nil: all is well.
func Verdict(findings []Finding) error {
	ranks, worst := []int{control.ExitDone, control.ExitFailed, control.ExitRefused, control.ExitUsage}, 0
	var errs []error
	for _, f := range findings {
		if f.Err == nil {
			continue
		}
		errs = append(errs, f.Err)
		code := control.ExitFailed
		if exit := (*control.ExitError)(nil); errors.As(f.Err, &exit) {
			code = exit.Code
		}
		worst = max(worst, slices.Index(ranks, code))
	}
	if worst == 0 {
		return nil
	}
	return &control.ExitError{Code: ranks[worst], Err: errors.Join(errs...)}
}

// checkWeb says what the file asks for; ok is false when there is none to tell of.
func checkWeb(c config.Config) (f Finding, ok bool) {
	if c.WebConfigFile == "" {
		return Finding{}, false
	}
	f = Finding{What: "web"}
	access, err := config.ReadWebAccess(c.WebConfigFile)
	if err != nil { // valid a moment ago
		f.Err = control.UsageError(fmt.Errorf("--web-config-file %q: %w", c.WebConfigFile, err))
		return f, true
	}
	asked := []string{"no TLS"}
	if access.TLS {
		asked[0] = "TLS"
	}
	if n := len(access.Users); n > 0 {
		asked = append(asked, control.Plural(n, "user"))
		if f.Warn = !access.TLS; f.Warn {
			asked = append(asked, "whose passwords pass over the network for all to read: set tls_server_config too")
		}
	}
	if access.Certificates {
		asked = append(asked, "client certificates")
	}
	f.Text = c.WebListen + ": " + strings.Join(asked, ", ")
	return f, true
}
