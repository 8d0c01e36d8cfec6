package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/lab/harness"
)

const password = "a password for the lab"

// gateWait is shorter than the drop-in's: one that is over is to be seen.
const gateWait = 3 * time.Second

// readyBound is for a start on a machine that has other things to do.
const readyBound = time.Minute

// host is a machine, and beside it an etcd that asks for a password.
type host struct {
	*machine
	name  string // of its broker
	etcd  *harness.Etcd
	ready string // URL
	unit  string // of the sidecar
}

// startHost starts an etcd and boots a machine with the unit.
func startHost(t *testing.T, unit string) *host {
	t.Helper()
	return join(t, startEtcd(t), "n1", unit)
}

func startEtcd(t *testing.T) *harness.Etcd {
	t.Helper()
	if testing.Short() {
		t.Skip("it boots a systemd, and waits for leases to end")
	}
	etcd, err := harness.ForTest(t).StartEtcd(t.Context(), harness.EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := etcd.EnableAuth(t.Context(), "root", "holdfast", password, ""); err != nil {
		t.Fatal(err)
	}
	return etcd
}

// join boots a machine with the unit and waits until clients may come.
func join(t *testing.T, etcd *harness.Etcd, name, unit string) *host {
	t.Helper()
	if err := (harness.Keys{}).Assign(t.Context(), etcd.Client(), name, "/shop/orders-"+name); err != nil {
		t.Fatal(err)
	}
	lab := harness.ForTest(t)
	var ports [4]int
	for i := range ports {
		var err error
		if ports[i], err = lab.Port(); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		"etc/holdfast/holdfast.yaml": fmt.Sprintf("driver: nats\netcd-endpoints: [%s]\nbroker-admin: nats://127.0.0.1:%d\nnats-monitor: http://127.0.0.1:%d\n"+
			"broker-pid-file: /run/nats/nats.pid\nlease-ttl: 15s\nprobe-listen: 127.0.0.1:%d\nweb-listen: 127.0.0.1:%d\nlog-format: json\n", etcd.Endpoint(), ports[0], ports[1], ports[2], ports[3]),
		"etc/holdfast/credentials/etcd-password": password + "\n",
		// The unit's own order of things, without the part about authorities: this etcd speaks http.
		"etc/systemd/system/" + unit + ".d/etcd-credentials.conf": withoutAuthorities(content(t, "etcd-credentials.conf")),
		"etc/nats-server.conf": fmt.Sprintf("server_name: %s\nlisten: 127.0.0.1:%d\nhttp: 127.0.0.1:%d\njetstream { store_dir: /var/lib/nats, max_memory_store: 64MB, max_file_store: 1GB }\npid_file: /run/nats/nats.pid\n", name, ports[0], ports[1]),
		// As Debian has it.
		"etc/systemd/system/" + broker: "[Unit]\nDescription=NATS Server\nAfter=network.target\n[Service]\nPrivateTmp=true\nType=simple\n" +
			"ExecStart=/usr/sbin/nats-server -c /etc/nats-server.conf\nExecReload=/bin/kill -s HUP $MAINPID\nExecStop=/bin/kill -s SIGINT $MAINPID\nUser=nats\nGroup=nats\n",
		// Both end in one transaction, as at a shutdown; two units in one call of systemctl do not.
		"etc/systemd/system/lab-end.target": "[Unit]\nDefaultDependencies=no\nConflicts=holdfast.service " + broker + "\n",
		"etc/sysusers.d/holdfast.conf":      content(t, "sysusers.d/holdfast.conf"),
		"etc/tmpfiles.d/holdfast.conf":      content(t, "tmpfiles.d/holdfast.conf"),
	}
	for _, name := range units {
		files["etc/systemd/system/"+name] = content(t, name)
	}
	if unit == "holdfast.service" {
		files["etc/systemd/system/"+broker+".d/holdfast-gate.conf"] = strings.Replace(content(t, gateFile), "--wait 60s", "--wait "+gateWait.String(), 1)
	}
	for at, p := range map[string]harness.Program{"usr/bin/holdfast": harness.Holdfast, "usr/sbin/nats-server": harness.NATSServer} {
		path, err := harness.Build(p)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[at] = string(raw)
	}
	h := &host{machine: boot(t, unit, files), name: name, etcd: etcd, unit: unit, ready: fmt.Sprintf("127.0.0.1:%d", ports[2])}
	h.awaitReady()
	return h
}

func withoutAuthorities(dropIn string) string {
	return strings.Join(slices.DeleteFunc(strings.SplitAfter(dropIn, "\n"), func(line string) bool {
		return strings.Contains(line, "etcd-ca.crt")
	}), "")
}

func (h *host) awaitReady() {
	h.t.Helper()
	err := harness.Await(h.t.Context(), readyBound, "the sidecar to be ready", func(ctx context.Context) (bool, string) {
		out, err := h.inside(ctx, "/usr/bin/holdfast", "healthcheck", "--probe-listen", h.ready)
		return err == nil, fmt.Sprint(out, err)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// members are the processes of a unit, by name, as the host numbers them.
func (h *host) members(unit string) map[string]int {
	h.t.Helper()
	at := map[string]int{}
	group := h.show(unit, "ControlGroup")
	if group == "" {
		return at
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", h.pid))
	if err != nil {
		h.t.Fatal(err)
	}
	_, below, _ := strings.Cut(string(own), "0::")
	below = strings.TrimSuffix(strings.TrimSpace(below), "/init.scope")
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		raw, err := os.ReadFile(filepath.Join(top, below, group, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, pid := range strings.Fields(string(raw)) {
			name, err := os.ReadFile("/proc/" + pid + "/comm")
			if err != nil {
				continue
			}
			n, _ := strconv.Atoi(pid)
			at[strings.TrimSpace(string(name))] = n
		}
	}
	return at
}

// awaitMembers waits until a unit has, or has not, a process of each name.
func (h *host) awaitMembers(unit string, what string, ok func(map[string]int) bool) map[string]int {
	h.t.Helper()
	var last map[string]int
	err := harness.Await(h.t.Context(), time.Minute, what, func(context.Context) (bool, string) {
		last = h.members(unit)
		return ok(last), fmt.Sprint(last)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return last
}

func (h *host) signal(name string, pid int) {
	h.t.Helper()
	if out, err := exec.Command("kill", "-"+name, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		h.t.Fatalf("kill -%s %d: %v: %s", name, pid, err, out)
	}
}

func (h *host) registered() bool {
	h.t.Helper()
	reg, err := (harness.Keys{}).ReadRegistration(h.t.Context(), h.etcd.Client(), h.name)
	if err != nil {
		h.t.Fatal(err)
	}
	return reg.CreateRevision != 0
}

// confined checks that the process has the rights of the unit and no more.
func (h *host) confined(pid int) {
	h.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		h.t.Fatal(err)
	}
	none := "0000000000000000"
	for field, want := range map[string]string{"CapEff": none, "CapPrm": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2"} {
		_, rest, _ := strings.Cut(string(raw), "\n"+field+":")
		if line, _, _ := strings.Cut(rest, "\n"); strings.TrimSpace(line) != want {
			h.t.Errorf("%s is %s, want %s", field, strings.TrimSpace(line), want)
		}
	}
	if strings.Contains(string(raw), "\nUid:\t0\t") {
		h.t.Error("it runs as root")
	}
}

// guardName is how the guard calls itself.
const guardName = "holdfast-guard"

func TestTheCompanionUnitKeepsItsBroker(t *testing.T) {
	h := startHost(t, "holdfast.service")
	all := h.awaitMembers(h.unit, "the sidecar and its guard", func(at map[string]int) bool { return at["holdfast"] != 0 && at[guardName] != 0 })
	h.confined(all["holdfast"])
	h.confined(all[guardName])
	if got := h.show(h.unit, "WatchdogUSec"); got != "20s" {
		t.Errorf("the watchdog is %s", got)
	}
	h.await(h.unit, "StatusText", func(s string) bool { return strings.Contains(s, "n1") })
	out := h.must("/usr/bin/holdfast", "events", "--state-dir", "/var/lib/holdfast")
	if !strings.Contains(out, "process") {
		t.Errorf("no word of the broker's process:\n%s", out)
	}

	t.Run("a reload takes up what it may, and fails for the rest", func(t *testing.T) {
		h.must("sh", "-c", "echo 'health-fall: 4' >>/etc/holdfast/holdfast.yaml")
		h.must("systemctl", "reload", h.unit)
		h.must("sh", "-c", "echo 'prefix: /elsewhere' >>/etc/holdfast/holdfast.yaml")
		if out, err := h.systemctl(t.Context(), "reload", h.unit); err == nil {
			t.Errorf("another prefix is taken up: %s", out)
		}
		h.must("sed", "-i", "/^prefix/d", "/etc/holdfast/holdfast.yaml")
		h.must("systemctl", "reload", h.unit)
		if got := h.show(h.unit, "NRestarts"); got != "0" {
			t.Errorf("restarted %s times", got)
		}
	})
	t.Run("the broker has waited for the sidecar", func(t *testing.T) {
		if ready, began := h.moment(h.unit, "ActiveEnter"), h.moment(broker, "ExecMainStart"); began <= ready {
			t.Errorf("the broker began %d us before its sidecar was there", ready-began)
		}
	})
	t.Run("a broker that is restarted beside a frozen sidecar waits, within a bound", func(t *testing.T) {
		sidecar := h.members(h.unit)["holdfast"]
		h.signal("STOP", sidecar)
		begun := time.Now()
		out, err := h.systemctl(t.Context(), "restart", broker)
		if took := time.Since(begun); err == nil || took < gateWait || took > gateWait+15*time.Second {
			t.Errorf("after %v: %s, %v", took, out, err)
		}
		was := h.show(broker, "NRestarts")
		h.await(broker, "NRestarts", func(s string) bool { return s != was }) // and waits again
		if at := h.members(broker); at["nats-server"] != 0 {
			t.Errorf("it was started: %v", at)
		}
		if said := h.must("cat", "/run/lab.log"); !strings.Contains(said, "is stopped (SIGSTOP): kill -CONT") || !strings.Contains(said, "no sidecar let the broker start within "+gateWait.String()) {
			t.Error("the gate does not say why")
		}
		h.signal("CONT", sidecar)
		h.awaitMembers(broker, "the broker to start by itself", func(at map[string]int) bool { return at["nats-server"] != 0 })
		h.activate()
	})
	t.Run("a sidecar that is killed is followed by another, and the broker stays", func(t *testing.T) {
		was := h.members(broker)["nats-server"]
		h.signal("KILL", h.members(h.unit)["holdfast"])
		h.await(h.unit, "NRestarts", func(s string) bool { return s == "1" })
		h.awaitReady()
		if now := h.members(broker)["nats-server"]; now != was {
			t.Errorf("the broker was process %d and is %d", was, now)
		}
	})
	t.Run("the guard stops the broker of a frozen sidecar", func(t *testing.T) {
		sidecar := h.awaitMembers(h.unit, "the guard", func(at map[string]int) bool { return at[guardName] != 0 })["holdfast"]
		h.signal("STOP", sidecar)
		h.awaitMembers(broker, "the broker to be stopped, and to wait at the gate", func(at map[string]int) bool { return at["nats-server"] == 0 && at["holdfast"] != 0 })
		// Its own watchdog would have ended it sooner or later.
		h.signal("CONT", sidecar)
		h.awaitMembers(broker, "the broker to start by itself", func(at map[string]int) bool { return at["nats-server"] != 0 })
		h.activate()
	})
	t.Run("the watchdog ends a sidecar that is stuck", func(t *testing.T) {
		was := h.show(h.unit, "NRestarts")
		h.signal("STOP", h.members(h.unit)["holdfast"])
		h.await(h.unit, "NRestarts", func(s string) bool { return s != was })
		h.awaitMembers(broker, "the broker to start by itself", func(at map[string]int) bool { return at["nats-server"] != 0 })
		h.activate()
	})
	t.Run("a clean stop leaves the broker, and nothing of the sidecar", func(t *testing.T) {
		h.must("systemctl", "stop", h.unit)
		h.awaitMembers(h.unit, "the guard to go", func(at map[string]int) bool { return len(at) == 0 })
		if h.registered() {
			t.Error("it is still registered")
		}
		if h.members(broker)["nats-server"] == 0 {
			t.Error("the broker was stopped")
		}
		if got := h.show(h.unit, "Result"); got != "success" {
			t.Errorf("the unit ended with %s", got)
		}
	})
	t.Run("a broker that crashes has not left", func(t *testing.T) {
		h.must("systemctl", "start", h.unit)
		h.awaitReady()
		refusals := func() int { return strings.Count(h.must("cat", "/run/lab.log"), "no planned stop is noted") }
		was, before := h.members(broker)["nats-server"], refusals()
		h.signal("KILL", was)
		h.awaitMembers(broker, "another process of the broker", func(at map[string]int) bool { return at["nats-server"] != 0 && at["nats-server"] != was })
		if refusals() > before {
			t.Error("it was asked to leave when its process had ended")
		}
		h.awaitReady()
	})
	t.Run("a shutdown ends the broker first, and nothing of the two is left", func(t *testing.T) {
		h.shutdown()
		if got := h.show(h.unit, "Result"); got != "success" || h.registered() {
			t.Errorf("the unit ended with %s, registered: %t", got, h.registered())
		}
		if broker, sidecar := h.moment(broker, "InactiveEnter"), h.moment(h.unit, "InactiveEnter"); broker >= sidecar {
			t.Errorf("the broker ended %d us after the sidecar", broker-sidecar)
		}
	})
}

// shutdown ends broker and sidecar in one transaction.
func (h *host) shutdown() {
	h.t.Helper()
	h.must("systemctl", "start", "lab-end.target")
	for _, unit := range []string{h.unit, broker} {
		h.await(unit, "ActiveState", func(s string) bool { return s == "inactive" || s == "failed" })
		h.awaitMembers(unit, "all to go", func(at map[string]int) bool { return len(at) == 0 })
	}
}

// The others live on meanwhile: who left no note is drained.
func TestARollingRestartOfThreeUnitsNeedsNobody(t *testing.T) {
	etcd := startEtcd(t)
	var fleet []*host
	for _, name := range []string{"n1", "n2", "n3"} {
		fleet = append(fleet, join(t, etcd, name, "holdfast.service"))
	}
	for _, way := range []struct {
		what string
		do   func(h *host)
		same bool // process of the broker
	}{
		{"the broker alone", func(h *host) { h.must("systemctl", "restart", broker) }, false},
		{"the sidecar alone, as for its upgrade", func(h *host) { h.must("systemctl", "restart", h.unit) }, true},
		{"the sidecar, and the broker after it", func(h *host) { h.must("systemctl", "restart", h.unit, broker) }, false},
		{"the broker, and the sidecar after it", func(h *host) { h.must("systemctl", "restart", broker, h.unit) }, false},
		{"the host", func(h *host) {
			h.shutdown()
			h.must("systemctl", "stop", "lab-end.target")
			h.must("systemctl", "start", "lab.target", h.unit)
		}, false},
	} {
		t.Run(way.what, func(t *testing.T) {
			for _, h := range fleet {
				pid, epoch := h.members(broker)["nats-server"], h.status().Epoch
				way.do(h)
				h.awaitReady()
				s := h.status()
				if s.Mode != "active" || s.Reason != "planned_restart" || s.Epoch <= epoch {
					t.Errorf("%s came back %s (%s), epoch %d after %d", h.name, s.Mode, s.Reason, s.Epoch, epoch)
				}
				if now := h.members(broker)["nats-server"]; now == 0 || (now == pid) != way.same {
					t.Errorf("%s: the broker was process %d and is %d", h.name, pid, now)
				}
			}
		})
	}
	for _, h := range fleet {
		if s := h.status(); s.Mode != "active" || !s.Ready.OK {
			t.Errorf("%s ends %s (%s)", h.name, s.Mode, s.Reason)
		}
	}
}

func (h *host) status() (s harness.Status) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.must("/usr/bin/holdfast", "status", "-o", "json", "--state-dir", "/var/lib/holdfast")), &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// moment is when the unit or its process last came to a state, in microseconds since the boot.
func (h *host) moment(unit, state string) int64 {
	h.t.Helper()
	at, err := strconv.ParseInt(h.show(unit, state+"TimestampMonotonic"), 10, 64)
	if err != nil || at == 0 {
		h.t.Fatalf("%s of %s: %d, %v", state, unit, at, err)
	}
	return at
}

// activate ends a drained mode, if there is one, as a person would.
func (h *host) activate() {
	h.t.Helper()
	err := harness.Await(h.t.Context(), time.Minute, "the broker to be activated", func(ctx context.Context) (bool, string) {
		out, err := h.inside(ctx, "/usr/bin/holdfast", "activate", "--state-dir", "/var/lib/holdfast")
		return err == nil, fmt.Sprint(out, err)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.awaitReady()
}

func TestTheUnitThatStartsTheBrokerKeepsIt(t *testing.T) {
	h := startHost(t, "holdfast-broker.service")
	three := func(at map[string]int) bool {
		return at["holdfast"] != 0 && at[guardName] != 0 && at["nats-server"] != 0
	}
	all := h.awaitMembers(h.unit, "the sidecar, its guard and the broker", three)
	for _, pid := range all {
		h.confined(pid)
	}
	t.Run("the broker of a sidecar that is killed goes on", func(t *testing.T) {
		h.signal("KILL", all["holdfast"])
		h.await(h.unit, "NRestarts", func(s string) bool { return s == "1" })
		h.awaitReady()
		if now := h.awaitMembers(h.unit, "all three again", three); now["nats-server"] != all["nats-server"] {
			t.Errorf("the broker was process %d and is %d", all["nats-server"], now["nats-server"])
		}
	})
	t.Run("the guard stops the broker of a frozen sidecar", func(t *testing.T) {
		at := h.awaitMembers(h.unit, "all three", three)
		h.signal("STOP", at["holdfast"])
		h.awaitMembers(h.unit, "the broker to be stopped", func(now map[string]int) bool { return now["nats-server"] != at["nats-server"] })
		h.signal("CONT", at["holdfast"])
		h.activate()
	})
	t.Run("a clean stop leaves nothing", func(t *testing.T) {
		h.must("systemctl", "stop", h.unit)
		h.awaitMembers(h.unit, "all to go", func(at map[string]int) bool { return len(at) == 0 })
		if h.registered() {
			t.Error("it is still registered")
		}
	})
	t.Run("and it comes back by itself", func(t *testing.T) {
		h.must("systemctl", "start", h.unit)
		h.awaitReady()
		if s := h.status(); s.Mode != "active" || s.Reason != "planned_restart" {
			t.Errorf("it came back %s (%s)", s.Mode, s.Reason)
		}
	})
}
