package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/agent/process"
	"holdfast/brokerapi"
	"holdfast/probes"
	"holdfast/recovery"
)

// recognizer keeps what was judged of the process that the pid file or the process name
// leads to. It is safe for concurrent use; the zero one refuses nobody.
type recognizer struct {
	mu        sync.Mutex
	answering bool // the broker answers: nobody is hit before he is judged
	target    process.Target
	since     time.Time // when it was first seen
	ended     time.Time // when its end was first seen; zero: not yet
	instance  string    // the broker process that it was judged by; empty: it was not yet
	verdict   recognition
	why       string
	asking    bool
}

// errForeign says that there is no process of the broker where it was looked for.
type errForeign string

func (e errForeign) Error() string        { return string(e) }
func (e errForeign) Is(target error) bool { return target == process.ErrNotFound }

// refuses says why a process must not be taken for the broker; nil: it may be. One that
// came up since and was not judged yet is believed only while nobody answers who could
// contradict it.
func (r *recognizer) refuses(t process.Target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case t == r.target && r.instance != "":
		if r.verdict == isForeign {
			return errForeign(r.why)
		}
		return nil
	case r.answering:
		return fmt.Errorf("%s is not yet known to be the broker that answers", t)
	}
	return nil
}

// foreign is why the process that was judged last is not the broker; empty: it may be.
func (r *recognizer) foreign() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdict != isForeign {
		return ""
	}
	return r.why
}

// gone reports whether the process that was recognized as the broker has ended, and the
// broker that it was did not answer since: then it was not that process after all.
func (r *recognizer) gone(who brokerapi.Report, answered time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verdict != isBroker || who.Instance != r.instance ||
		!r.target.Gone() {
		return false
	}
	if r.ended.IsZero() {
		r.ended = time.Now()
	}
	return !answered.After(r.ended)
}

// begin reports whether the process is to be judged now, and notes that it is. An answer
// from before the process was seen may be another process's.
func (r *recognizer) begin(t process.Target, instance string, answered time.Time, up bool) (ask, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answering = up
	if t.Pid == 0 {
		return false, false // what was judged stays: its pid file may come back
	}
	if t != r.target {
		r.target, r.since, r.ended, r.instance, r.verdict, r.why = t, time.Now(), time.Time{}, "", unrecognized, ""
		isNew = true
	}
	ask = up && instance != "" && instance != r.instance && answered.After(r.since) && !r.asking
	r.asking = r.asking || ask
	return ask, isNew
}

// judging reports whether a judgement is under way.
func (r *recognizer) judging() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asking
}

// end notes a judgement, and reports whether it is news.
func (r *recognizer) end(t process.Target, instance string, verdict recognition, why string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if t != r.target {
		return false
	}
	news := r.instance == "" || r.verdict != verdict
	r.instance, r.verdict, r.why = instance, verdict, why
	return news
}

// settle notes a judgement of a process that may not have been seen before.
func (r *recognizer) settle(t process.Target, instance string, verdict recognition, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t != r.target {
		r.target, r.since, r.ended = t, time.Now(), time.Time{}
	}
	r.instance, r.verdict, r.why = instance, verdict, why
}

// silent says that nobody answers who could contradict a process that was not judged.
func (r *recognizer) silent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answering = false
}

// brokerGone reports whether the broker that was last known is proven to have ended,
// whatever its health was when last asked. It is safe for concurrent use.
func (a *agent) brokerGone() bool {
	if a.child != nil {
		t, runs := a.child.Target()
		return !runs && a.childRan.Load() || runs && t.Gone()
	}
	who, _ := a.identity.get()
	return a.recognizer.gone(who, a.identity.asked())
}

// refuser is a Stopper or a Guard that lets itself be told whom to leave alone.
type refuser interface {
	Refuse(func(process.Target) error)
}

// introduce has everybody who may signal the broker's process ask the recognizer first.
func (a *agent) introduce() {
	if a.process == nil {
		return
	}
	a.expectProcess()
	for _, one := range []any{a.stopper, a.guard} {
		if r, ok := one.(refuser); ok {
			r.Refuse(a.recognizer.refuses)
		}
	}
}

// recognizeProcess has the process that is watched judged as soon as the broker answers,
// and again whenever another process answers or is watched.
func (a *agent) recognizeProcess(verdict probes.Verdict, who brokerapi.Report) {
	if a.process == nil {
		return
	}
	seen := a.process.Snapshot()
	t := seen.Target
	ask, isNew := a.recognizer.begin(t, who.Instance, a.identity.asked(), verdict == probes.Up)
	if isNew {
		a.identity.forget() // it may be another broker that answers now
	}
	if p := a.memory.Process; p != nil && !p.Strict && p.Target == t && a.process.Finder.Strict() { // others were seen since
		a.remember(func(m *memory) { again := *p; again.Strict = true; m.Process = &again })
	}
	if !ask {
		return
	}
	before := a.recognizedBefore(t, who.Instance)
	a.tasks.Go(func() {
		judged, why := isBroker, ""
		if !before {
			judged, why = judgeProcess(a.life0, a.cfg, seen, who)
		}
		if a.recognizer.end(t, who.Instance, judged, why) {
			a.shun(t, judged)
			if judged == isForeign {
				a.process.Finder.Forget(t)
			}
			a.tell(a.life0, func() {
				a.noteRecognition(seen, judged, why)
				a.rememberProcess(t, who.Instance, judged)
			})
		}
		a.wakeGuard()
	})
}

// recognizeNow judges the process that is watched, for a stop that follows while the loop
// does not run any more.
func (a *agent) recognizeNow(ctx context.Context) {
	if a.process == nil {
		return
	}
	seen := a.process.Snapshot()
	if seen.Pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recovery.LateQuiesce)
	defer cancel()
	who, err := a.broker.Probe(ctx)
	if err != nil && who.Instance == "" && !errors.Is(err, brokerapi.ErrUnseen) {
		a.recognizer.silent()
		return
	}
	known, _ := a.identity.get()
	who.Instance = cmp.Or(who.Instance, known.Instance) // not every broker tells it
	judged, why := judgeProcess(ctx, a.cfg, seen, who)
	a.recognizer.settle(seen.Target, who.Instance, judged, why)
}

// shun tells the guard, which is a process of its own.
func (a *agent) shun(t process.Target, judged recognition) {
	g, ok := a.guard.(interface{ Shun(process.Target) })
	switch {
	case !ok:
	case judged == isForeign:
		g.Shun(t)
	default:
		g.Shun(process.Target{})
	}
}

func (a *agent) noteRecognition(seen probes.ProcessView, judged recognition, why string) {
	switch judged {
	case isBroker:
		a.log.Info("the broker's process is recognized", "pid", seen.Pid, "name", seen.Name)
	case isForeign:
		a.log.Error("not the broker's process: it is left alone, and nothing stops the broker", "pid", seen.Pid, "detail", why)
		a.event(control.Event{Kind: "process", To: "foreign", Epoch: a.memory.Epoch, Detail: why})
	case unrecognized:
		a.log.Warn("cannot tell whether this is the broker's process: it is taken for it", "pid", seen.Pid, "name", seen.Name, "detail", why)
	}
}

// judgeProcess gathers what can be known of the process and judges it. why is one
// sentence for people; with isForeign it names the remedy.
func judgeProcess(ctx context.Context, c config.Config, seen probes.ProcessView, who brokerapi.Report) (verdict recognition, why string) {
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
	if verdict == isForeign {
		where, remedy := "--broker-pid-file "+c.BrokerPIDFile, "give the pid file that this broker writes"
		if c.BrokerPIDFile == "" {
			where, remedy = "--broker-process "+c.BrokerProcess, "give --broker-pid-file"
		}
		why = fmt.Sprintf("%s: process %d (%s) is not the broker that answers at %s: %s: %s",
			where, seen.Pid, seen.Name, withoutPassword(c.BrokerAdmin), why, remedy)
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
	host, port, ok := adminAddress(c)
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

func adminAddress(c config.Config) (host string, port uint16, ok bool) {
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

// recognition says whether a process that a pid file or a name led to is the broker
// that answers at the admin address.
type recognition int

const (
	unrecognized recognition = iota // it cannot be told: it is believed, with a warning
	isBroker
	isForeign // it is never signaled, and its end proves nothing
)

func (r recognition) String() string { return [...]string{"unknown", "broker", "foreign"}[r] }

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
func recognize(f recognitionFacts) recognition {
	if f.Holding == probes.HoldingYes {
		return isBroker
	}
	if f.Holding == probes.HoldingAnother && f.Twins {
		return isForeign // the broker next to this one; no proxy is called like the broker
	}
	if f.Started.IsZero() || f.Stated.IsZero() {
		return unrecognized
	}
	apart := f.Started.Sub(f.Stated).Abs()
	switch {
	case apart > startTolerance:
		return isForeign
	case f.Holding == probes.HoldingAnother && f.Holder.Sub(f.Stated).Abs() < apart:
		return isForeign
	case f.Holding == probes.HoldingUnknown:
		return isBroker
	}
	return unrecognized
}

// pastProcess is a process of the broker that this sidecar, or one before it, recognized.
type pastProcess struct {
	process.Target
	Instance string `json:"instance"`         // that it answered with
	Space    string `json:"space"`            // in which the target means that process
	Strict   bool   `json:"strict,omitempty"` // see probes.Finder
}

// rememberProcess notes which process the broker is, for the next life of this sidecar:
// where both end, the next process of the broker is not to be fenced for what the one
// before was registered for. It may need longer to come up than the lease had left.
func (a *agent) rememberProcess(t process.Target, instance string, judged recognition) {
	space, err := process.Space()
	if err != nil || judged != isBroker {
		return
	}
	a.remember(func(m *memory) {
		m.Process = &pastProcess{Target: t, Instance: instance, Space: space, Strict: a.process.Finder.Strict()}
	})
}

// recallProcess takes up which process served before this sidecar began. One that is not
// surely the one that was registered, or is another's pid by now, proves nothing.
func (a *agent) recallProcess() {
	if p := a.memory.Process; p.here() && p.Instance == a.memory.Instance {
		a.served = p.Target
	}
}

// here reports whether the process can be told from all others.
func (p *pastProcess) here() bool {
	if p == nil {
		return false
	}
	space, err := process.Space()
	return err == nil && space == p.Space
}

// seeker is who finds the broker's process beside the watch of it.
type seeker interface{ Use(*probes.Finder) }

// expectProcess has everybody find the process in one way, and know the one that an earlier sidecar
// recognized, however the wall clock was set since.
func (a *agent) expectProcess() {
	if p := a.memory.Process; p.here() {
		a.process.Finder.Expect(p.Target, probes.Clues{Strict: p.Strict})
	}
	for _, one := range []any{a.stopper, a.guard} {
		if s, ok := one.(seeker); ok {
			s.Use(a.process.Finder)
		}
	}
}

// brokerFinder finds the broker's process.
func brokerFinder(c config.Config) *probes.Finder {
	return &probes.Finder{PIDFile: c.BrokerPIDFile, Name: c.BrokerProcess, Admin: func() ([]netip.AddrPort, error) {
		at := adminAddrs(context.Background(), c)
		if _, _, ok := adminAddress(c); ok && len(at) == 0 {
			return nil, fmt.Errorf("--broker-admin %s: the address of its host is not known", withoutPassword(c.BrokerAdmin))
		}
		return at, nil
	}}
}

// recognizedBefore reports whether an earlier sidecar recognized that process by what it
// answered with.
func (a *agent) recognizedBefore(t process.Target, instance string) bool {
	p := a.memory.Process
	return p.here() && p.Target == t && p.Instance == instance
}
