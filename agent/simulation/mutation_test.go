package simulation

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	mutate   = flag.String("mutate", "", "run the mutations whose name matches; \".\" is all (make mutate-simulation)")
	mutateTo = flag.Int("mutate-schedules", 600, "after how many schedules a mutant has survived")
)

// mutation is a deliberate breakage of a safety rule, which the simulation must notice.
type mutation struct {
	name, rule string
	edits      []string // a snippet and what replaces it, in turn; each stands once in the product, anywhere
}

var mutations = []mutation{
	{"the margin is ignored", "rule 2", []string{
		"return v.Deadline().Add(-v.Margin)",
		"return v.Deadline()"}},
	{"the fence is skipped", "rule 2", []string{
		"if !a.cfg.Detach || a.attachment != recovery.Detached ||",
		"if true || !a.cfg.Detach || a.attachment != recovery.Detached ||"}},
	{"a clean stop gives the registration up before it fences", "rule 2", []string{
		"\tn, err := a.reconciler.Fence(ctx)\n",
		"\tn, err := 0, ctx.Err()\n"}},
	{"renewals go on while the broker is down", "the lease", []string{
		`{false, "it is down", func(f *RenewalFacts) bool { return f.Down }},`,
		`{false, "it is down", func(f *RenewalFacts) bool { return f.Down && !f.Renewed }},`}},
	{"a lost lease is a failed renewal", "rule 3", []string{
		"case errors.Is(a.err, ErrLost):",
		"case errors.Is(a.err, ErrLost) && k == nil:"}},
	{"a lease that survived is drained", "rule 3", []string{
		"nobody was declared dead\", f.Same && f.Stands\n",
		"nobody was declared dead\", f.Same && f.Stands && f.Corrupt != \"\"\n"}},
	{"registration and state are two writes", "rule 5", []string{
		"\tif out.Decision.Write {\n\t\treq.State = StateOf(out.Decision.Mode)\n\t}\n\tdone, err := client.Register(ctx, req)\n",
		"\tdone, err := client.Register(ctx, req)\n\tif err == nil && out.Decision.Write {\n\t\t_, err = client.PutState(ctx, seen.BrokerID, *StateOf(out.Decision.Mode), seen.StateRevision)\n\t}\n"}},
	{"a suspect is never lifted", "rule 12", []string{
		"return s, NobodyLived, \"nobody who was registered before proved to have lived on\"",
		"return s, SomebodyLived, \"nobody who was registered before proved to have lived on\""}},
	{"a suspect is lifted though a peer lived on", "rule 12", []string{
		"\t\tif s.outlived(p, r) {",
		"\t\tif s.outlived(p, r) && l.Era != 0 {"}},
	{"a suspect is lifted at once", "rule 12", []string{
		"case l.Now < due:",
		"case l.Now < due && s.Anew > mostAnew:"}},
	{"a broker that is lost among others is active", "rule 12", []string{
		"d.Suspect = &Suspect{Lost: f.lost(), Row: ReasonStaleRestart}",
		"d.Mode.Mode = Active"}},
	{"a restart lifts an operator's drain", "rule 6", []string{
		"held && (m.By != ByHoldfast || f.suspicion() == nil)",
		"held && f.Same && (m.By != ByHoldfast || f.suspicion() == nil)"}},
	{"orders stay attached after the detachment", "rule 9", []string{
		"{\"detached\", \"attached\", noService | Assert,",
		"{\"detached\", \"attached\", Ready | Load | Places | Assert,"}},
	{"topics are loaded by assignments of before the registration", "rule 4", []string{
		"if (a.attachment == recovery.Detached || o.Restored || o.Succeeds) && a.relists {",
		"if (a.attachment == recovery.Detached || o.Restored || o.Succeeds) && !a.relists {"}},
	{"another process of the broker is taken for the one that was", "startup", []string{
		"case lost && (now.Silent || now.Instance != out.Instance):",
		"case lost && now.Gone:"}},
	{"ready while it serves what belongs elsewhere", "rule 7", []string{
		"case r.awaited() == 0 && r.counts.Foreign == 0 && (r.counts.Orphan == 0 || r.mass.Tripped()):",
		"case r.counts.Missing == r.counts.Elsewhere:"}},
	{"every boot is a first boot", "startup", []string{
		"if len(found) > 0 {",
		"if len(found) > 100 {"}},
	{"the state file's lease is trusted", "the lease", []string{
		"\tk.metrics = newMetrics(reg, k)\n",
		"\tif resume != 0 {\n\t\tk.view.Store(&View{Phase: Holding, Grant: Grant{LeaseID: resume}, Validity: Validity{SentAt: s.Clock(), TTL: s.Timing.TTL, Margin: s.Timing.Margin}})\n\t}\n\tk.metrics = newMetrics(reg, k)\n",
		"\ta.incarnation = a.memory.Incarnation\n",
		"\ta.grant = lease.Grant{LeaseID: a.memory.LeaseID, Epoch: a.memory.Epoch}\n\ta.mode = recovery.ModeRecord{Mode: recovery.Mode(a.memory.Mode), Reason: recovery.Reason(a.memory.Reason), By: a.memory.By}\n\ta.incarnation = a.memory.Incarnation\n"}},
	{"the guard is disarmed before anything is proven", "dead-man guard", []string{
		"if at := a.provenUntil(); at > max(now, v.StopAt()) && a.fencing.reached.Proven() && a.fencing.underway == recovery.StepNone {",
		"if at := now.Add(time.Hour); a.attachment == recovery.Detached {"}},
	{"the guard is never armed", "dead-man guard", []string{
		"\t\ta.guard.Arm(v)\n",
		""}},
	{"the guard's moment is the deadline", "dead-man guard", []string{
		"return v.StopAt(), v.Deadline().Add(-v.Margin / 6)",
		"return v.Deadline(), v.Deadline()"}},
	{"a broker that cannot be quiesced is not stopped", "fence ladder", []string{
		"case f.Stop && !l.leftUs(f):\n\t\tr.Fence, r.Step",
		"case f.Stop && f.MustStop:\n\t\tr.Fence, r.Step",
		"\t\ta.guard.Arm(v)\n",
		""}},
	{"a lock is released before the topic is unloaded", "ownership", []string{
		"return LockKeep\n\t\tcase f.Serving:",
		"return LockKeep\n\t\tcase f.Serving && !f.Attached:"}},
	{"what is to be held moves", "rendezvous", []string{
		"\tcase !p.Move:\n",
		""}},
	{"a topic is given away while it is served", "rendezvous", []string{
		"return released && len(o.reconciler.Idle([]string{topic})) == 1",
		"return ok && (released || l.yield)",
		"created(c.keys.Owner(g.Topic), 0), ",
		""}},
	{"a pause does not hold the registration back", "pause", []string{
		"if !now.paused() {",
		`if !now.paused() || r.Config.Driver != "" {`}},
	{"a pause does not hold loads back", "pause", []string{
		"Paused: a.paused() && a.mode.HeldByPause(),",
		"Paused: false,"}},
	{"a pause does not hold the taking of topics back", "pause", []string{
		"{\"paused\", \"\", Load | Takes | Assert,",
		"{\"paused\", \"\", Load | Assert,"}},
	{"retries are used up while etcd has no leader", "session policy", []string{
		"case f.Failure == FailureNoLeader:",
		"case f.Failure == FailureNoLeader && !f.Lost:",
		"case f.Failure != FailureUnreachable && f.Failure != FailureTimeout:",
		"case f.Failure != FailureUnreachable && f.Failure != FailureTimeout && f.Failure != FailureNoLeader:"}},
	{"the session policy ends the sidecar and not the broker", "session policy", []string{
		"\treturn a.stopper.Stop(ctx)\n",
		"\treturn \"killed\", nil\n"}},
	{"the policy shutdown registers again", "session policy", []string{
		"f.Same && (r.Policy == PolicyShutdown || ",
		"f.Same && (",
		"r.Policy == PolicyReconnect && (f.Same || r.FencesItself)",
		"r.Policy != PolicyDrain && (f.Same || r.FencesItself)"}},
	{"a connection that comes up is news however often it does", "the lease", []string{
		"wait := max(0, time.Until(h.free))",
		"wait := time.Duration(0)"}},
	{"a renewal that failed is repeated at once", "the lease", []string{
		"d := pause.next()",
		"d := 0 * pause.next()"}},
	{"a registration that failed is repeated at once", "the lease", []string{
		"k.boundPause(pause.next(), k.set.Clock())",
		"0*k.boundPause(pause.next(), k.set.Clock())"}},
	{"what could not be listed is listed again at once", "the lease", []string{
		"pause = min(2*pause, followMax)",
		"pause = time.Millisecond"}},
}

// product is the text of each file that may be mutated, by its name from here.
var product = sync.OnceValues(func() (map[string]string, error) {
	files := map[string]string{}
	for _, dir := range []string{"agent", "recovery", "cluster"} {
		if err := filepath.WalkDir(filepath.Join("..", "..", dir), func(name string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := os.ReadFile(name)
			files[name] = string(text)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return files, nil
})

// apply returns the text of each file that the mutation changes.
func (m mutation) apply() (map[string]string, error) {
	files, err := product()
	if err != nil {
		return nil, err
	}
	changed := map[string]string{}
	for i := 0; i < len(m.edits); i += 2 {
		hits := 0
		for name, text := range files {
			if was, ok := changed[name]; ok {
				text = was
			}
			if n := strings.Count(text, m.edits[i]); n > 0 {
				hits += n
				changed[name] = strings.Replace(text, m.edits[i], m.edits[i+1], 1)
			}
		}
		if hits != 1 {
			return nil, fmt.Errorf("found %d times, not once:\n%s", hits, m.edits[i])
		}
	}
	return changed, nil
}

func TestEachMutationAppliesOnce(t *testing.T) {
	for _, m := range mutations {
		if _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// tries is how often a mutant is tried that was not caught: the order of goroutines, which
// no seed decides, may spare one.
const tries = 3

// TestEveryMutantIsCaught builds this package's test program with one rule broken, again and
// again, and expects it to fail.
func TestEveryMutantIsCaught(t *testing.T) {
	if *mutate == "" {
		t.Skip("takes minutes: make mutate-simulation")
	}
	which := regexp.MustCompile(*mutate)
	for _, m := range mutations {
		if !which.MatchString(m.name) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // to compile one package keeps one processor busy
			program := build(t, m)
			began := time.Now()
			for try := range tries {
				out, err := exec.Command(program, "-test.run", "^(TestNamed|TestNothingIsServed)", "-brief", "-schedules", fmt.Sprint(*mutateTo),
					"-test.failfast", "-test.timeout", "5m").CombinedOutput()
				if err != nil {
					t.Logf("%s: caught at try %d after %v: %s", m.rule, try+1, time.Since(began).Round(100*time.Millisecond), verdict(string(out)))
					return
				}
			}
			t.Fatalf("%s: survived the named and %d random schedules %d times", m.rule, *mutateTo, tries)
		})
	}
}

// verdict is the line that says what was violated.
func verdict(out string) string {
	for _, line := range []string{`(?m)^ *[0-9.]+s: .*$`, `(?m)^ +\w+_test\.go:\d+: .*$`, `(?m)^panic: .*$`} {
		if m := regexp.MustCompile(line).FindString(out); m != "" {
			return strings.TrimSpace(m)
		}
	}
	return strings.TrimSpace(out[:min(len(out), 400)])
}

// build makes the test program with the mutant, without touching the tree.
func build(t *testing.T, m mutation) string {
	t.Helper()
	changed, err := m.apply()
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for name, text := range changed {
		to := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name, err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
		replace[name] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	if err := os.WriteFile(list, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-p", "2", "-ldflags=-s -w", "-overlay", list, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%s does not build: %v\n%s", m.name, err, out)
	}
	return program
}
