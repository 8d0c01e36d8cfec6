package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"holdfast/lab/harness"
)

const user = 65532

// The rules of Kubernetes' "restricted" profile, and the ones that the guard needs.
func TestThePodHasTheLeastRights(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		spec := m.set.Spec.Template.Spec
		token := func(b *bool) bool { return b == nil || *b }
		if token(spec.AutomountServiceAccountToken) || token(m.account.AutomountServiceAccountToken) || spec.ServiceAccountName != m.account.Name {
			t.Error("a token of Kubernetes is mounted")
		}
		if spec.HostNetwork || spec.HostPID || spec.HostIPC {
			t.Error("it is in a namespace of the host")
		}
		p := spec.SecurityContext
		if p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser != user || *p.RunAsGroup != user || *p.FSGroup != user {
			t.Errorf("users %+v", p)
		}
		if p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("seccomp %+v", p.SeccompProfile)
		}
		if spec.ShareProcessNamespace == nil || !*spec.ShareProcessNamespace {
			t.Error("the sidecar cannot see the broker's process")
		}
		for _, c := range m.all() {
			s := c.SecurityContext
			switch {
			case s == nil, s.AllowPrivilegeEscalation == nil, *s.AllowPrivilegeEscalation, s.ReadOnlyRootFilesystem == nil, !*s.ReadOnlyRootFilesystem,
				s.Capabilities == nil, !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}), len(s.Capabilities.Add) > 0, s.Privileged != nil:
				t.Errorf("%s may %+v", c.Name, s)
			case s.RunAsUser != nil:
				t.Errorf("%s has a user of its own, so the broker cannot be signalled", c.Name)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s has no bounds", c.Name)
			}
			for _, e := range c.Env {
				if strings.Contains(e.Name, "PASSWORD") && !strings.HasSuffix(e.Name, "_FILE") {
					t.Errorf("%s: a secret in %s", c.Name, e.Name)
				}
			}
		}
		for _, v := range spec.Volumes {
			if v.HostPath != nil {
				t.Errorf("volume %s is the host's", v.Name)
			}
			if v.Secret != nil && (v.Secret.DefaultMode == nil || *v.Secret.DefaultMode != 0o440) {
				t.Errorf("others may read the secret %s: %+v", v.Name, v.Secret)
			}
		}
		writes := func(c *corev1.Container) (names []string) {
			for _, v := range c.VolumeMounts {
				if !v.ReadOnly {
					names = append(names, filepath.Join(v.Name, v.SubPath))
				}
			}
			slices.Sort(names)
			return names
		}
		for name, want := range map[string][]string{"holdfast-install": {"run"}, "holdfast": {"data/holdfast", "run"}, "nats": {"data"}} {
			if got := writes(m.container(t, name)); !slices.Equal(got, want) {
				t.Errorf("%s may write %q, want %q", name, got, want)
			}
		}
	})
}

// ports are what the sidecar listens on with its defaults; paths are those of its probes.
func TestProbesAskWhatIsThere(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		sidecar := m.container(t, "holdfast")
		named := map[string]int32{}
		for _, p := range sidecar.Ports {
			named[p.Name] = p.ContainerPort
		}
		if named["probes"] != 9808 || named["web"] != 9809 {
			t.Errorf("ports %v", named)
		}
		for what, c := range map[string]struct {
			in   *corev1.Container
			of   func(*corev1.Container) *corev1.Probe
			path string
		}{
			// /startup waits for the broker, which waits for the startup probe of a native sidecar.
			"startup":        {sidecar, func(c *corev1.Container) *corev1.Probe { return c.StartupProbe }, "/live"},
			"readiness":      {sidecar, func(c *corev1.Container) *corev1.Probe { return c.ReadinessProbe }, "/ready"},
			"liveness":       {sidecar, func(c *corev1.Container) *corev1.Probe { return c.LivenessProbe }, "/live"},
			"broker's alive": {m.container(t, "nats"), func(c *corev1.Container) *corev1.Probe { return c.LivenessProbe }, "/broker/live"},
		} {
			probe := c.of(c.in)
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != c.path {
				t.Errorf("%s: %+v, want %s", what, probe, c.path)
				continue
			}
			// A name is looked up among the ports of the probed container, and only there.
			port := probe.HTTPGet.Port
			if port.StrVal != "" && !slices.ContainsFunc(c.in.Ports, func(p corev1.ContainerPort) bool { return p.Name == port.StrVal && p.ContainerPort == 9808 }) ||
				port.StrVal == "" && port.IntVal != 9808 {
				t.Errorf("%s asks port %s", what, port.String())
			}
		}
		if nats := m.container(t, "nats"); nats.StartupProbe != nil || nats.ReadinessProbe != nil {
			t.Error("the broker has probes of its own, beside the sidecar's word")
		}
	})
}

// A sidecar and a guard that end with their container leave the broker to its own probe,
// which must stop it before the lease can be gone.
func TestTheBrokersProbeStopsItBeforeTheLeaseEnds(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		p := m.container(t, "nats").LivenessProbe
		if p.TerminationGracePeriodSeconds == nil {
			t.Fatal("no grace period of its own: the pod's is for a planned stop")
		}
		stopped := time.Duration(p.PeriodSeconds*p.FailureThreshold+p.TimeoutSeconds)*time.Second + time.Duration(*p.TerminationGracePeriodSeconds)*time.Second
		// The defaults: a TTL of 32s, renewed each eighth of it.
		if left := 32*time.Second - 4*time.Second; stopped >= left {
			t.Errorf("stopped after %v, the lease may be gone after %v", stopped, left)
		}
	})
}

// One that is stuck does not end by SIGTERM. One that is not has its broker fenced within eight seconds.
func TestASidecarThatIsStuckIsNotGivenTheGraceOfThePod(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		grace := m.container(t, "holdfast").LivenessProbe.TerminationGracePeriodSeconds
		if grace == nil || *grace < 9 || *grace > 15 {
			t.Errorf("grace %v, want ten seconds or so", grace)
		}
	})
}

// A planned stop is noted while the broker still answers. A drain would be: a person must end it.
func TestThePodLeavesAndEndsWithinItsGrace(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		grace := time.Duration(*m.set.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
		for _, c := range m.all() {
			if c.Lifecycle == nil {
				if c.Name == "nats" {
					t.Error("nothing has the broker leave before it is stopped")
				}
				continue
			}
			command := c.Lifecycle.PreStop.Exec.Command
			i := slices.Index(command, "--timeout")
			if i < 0 || command[1] != "leave" {
				t.Fatalf("%s: preStop is %q, want leave with a bound", c.Name, command)
			}
			bound, err := time.ParseDuration(command[i+1])
			if err != nil {
				t.Fatal(err)
			}
			// The answer, the broker's end (10s) and the sidecar's (12s).
			if left := grace - bound - 10*time.Second; left < 22*time.Second {
				t.Errorf("%s: %v of grace, %v of them to leave: %v for the rest", c.Name, grace, bound, left)
			}
			// A broker that its pod's end has not reached by then is taken back: --leave-timeout.
			if grace >= 5*time.Minute {
				t.Errorf("%v of grace: the broker would be registered again", grace)
			}
		}
	})
}

// What one container mounts another has put there.
func TestThePodFitsTogether(t *testing.T) {
	each(t, func(t *testing.T, m *manifests) {
		spec := m.set.Spec.Template.Spec
		volumes := map[string]corev1.Volume{}
		for _, v := range spec.Volumes {
			volumes[v.Name] = v
		}
		for _, c := range m.set.Spec.VolumeClaimTemplates {
			volumes[c.Name] = corev1.Volume{}
		}
		at := func(container, volume string) string {
			for _, v := range m.container(t, container).VolumeMounts {
				if filepath.Join(v.Name, v.SubPath) == volume {
					return v.MountPath
				}
			}
			t.Errorf("%s does not mount %s", container, volume)
			return ""
		}
		for _, c := range m.all() {
			for _, v := range c.VolumeMounts {
				if _, ok := volumes[v.Name]; !ok {
					t.Errorf("%s mounts %s, which is no volume", c.Name, v.Name)
				}
			}
		}
		for name, c := range map[string]string{"nats-config": "nats", "holdfast-config": "holdfast"} {
			if got := volumes[name].ConfigMap; got == nil || got.Name != m.settings[c].Name {
				t.Errorf("volume %s is %+v, want %s", name, got, m.settings[c].Name)
			}
		}
		var set map[string]any
		if err := yaml.Unmarshal([]byte(m.settings["holdfast"].Data["holdfast.yaml"]), &set); err != nil {
			t.Fatal(err)
		}
		run := at("holdfast", "run")
		program := filepath.Join(at("holdfast-install", "run"), "holdfast")
		pre := m.container(t, "nats").Lifecycle.PreStop.Exec.Command
		if args := m.container(t, "holdfast-install").Args; !slices.Equal(args, []string{"install", program}) {
			t.Errorf("the program is installed by %q", args)
		}
		if pre[0] != filepath.Join(at("nats", "run"), "holdfast") || !slices.Contains(pre, filepath.Join(at("nats", "run"), "control.sock")) {
			t.Errorf("preStop is %q", pre)
		}
		gate := m.container(t, "nats").Command
		if dashes := slices.Index(gate, "--"); dashes != len(gate)-2 || !slices.Equal(gate[:2], []string{filepath.Join(at("nats", "run"), "holdfast"), "gate"}) ||
			!slices.Contains(gate, filepath.Join(at("nats", "run"), "control.sock")) {
			t.Errorf("the broker's gate is %q", gate)
		}
		for key, want := range map[string]any{
			"data-dir": at("holdfast", "data"), "state-dir": at("holdfast", "data/holdfast"), "control-socket": filepath.Join(run, "control.sock"), "broker-process": "nats-server",
		} {
			if set[key] != want {
				t.Errorf("%s is %v, want %v", key, set[key], want)
			}
		}
		// The server states its own view of the directory, which must be the sidecar's too.
		if at("nats", "data") != at("holdfast", "data") || !strings.Contains(m.settings["nats"].Data["nats.conf"], "store_dir: "+at("nats", "data")+"\n") {
			t.Error("server and sidecar do not mean the same directory")
		}
		labels := m.set.Spec.Template.Labels
		for what, selector := range map[string]map[string]string{"set": m.set.Spec.Selector.MatchLabels, "service": m.service.Spec.Selector,
			"budget": m.budget.Spec.Selector.MatchLabels, "policy": m.policy.Spec.PodSelector.MatchLabels} {
			if len(selector) == 0 {
				t.Errorf("the %s selects everything", what)
			}
			for k, v := range selector {
				if labels[k] != v {
					t.Errorf("the %s selects %s=%s, the pod has %q", what, k, v, labels[k])
				}
			}
		}
		if m.set.Spec.ServiceName != m.service.Name {
			t.Errorf("service %s, want %s", m.set.Spec.ServiceName, m.service.Name)
		}
		if m.rules != nil && (len(m.rules.Spec.Groups) == 0 || len(m.rules.Spec.Groups[0].Rules) == 0) {
			t.Error("there are no rules")
		}
		if (m.monitor != nil) != (m.rules != nil) {
			t.Error("not all components are there")
		}
		if m.monitor != nil {
			e := m.monitor.Spec.PodMetricsEndpoints[0]
			if !slices.ContainsFunc(m.container(t, "holdfast").Ports, func(p corev1.ContainerPort) bool { return p.Name == e.Port }) || e.Path != "/metrics" {
				t.Errorf("metrics are read at %+v", e)
			}
			for k, v := range m.monitor.Spec.Selector.MatchLabels {
				if labels[k] != v {
					t.Errorf("the monitor selects %s=%s", k, v)
				}
			}
		}
	})
}

// A native sidecar stands before the broker among the init containers and is restarted
// always; a plain one must wait by itself until the broker has left.
// An emptyDir that is not named so keeps the cluster autoscaler from its node, and 'kubectl drain'
// from the pod without a flag.
func TestEachEmptyDirMayGoWithItsNode(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(directory(t), "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, m *manifests) {
		var dirs []string
		for _, v := range m.set.Spec.Template.Spec.Volumes {
			if v.EmptyDir == nil {
				continue
			}
			dirs = append(dirs, v.Name)
			if row := regexp.MustCompile("(?m)^.*emptyDir `" + v.Name + "`.*$").FindString(string(page)); !strings.Contains(row, "`kubectl drain --delete-emptydir-data`") {
				t.Errorf("deploy/README.md does not say of emptyDir %s what 'kubectl drain' wants: %q", v.Name, row)
			}
		}
		if got := m.set.Spec.Template.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]; got != strings.Join(dirs, ",") || got == "" {
			t.Errorf("the cluster autoscaler may take %q, want each emptyDir: %q", got, dirs)
		}
	})
}

func TestTheOrderOfTheContainers(t *testing.T) {
	for _, dir := range []string{filepath.Join(directory(t), variants["base"]), withComponents(t, "base")} {
		isNative(t, decode(t, render(t, dir)).set.Spec.Template.Spec)
	}
	m := decode(t, render(t, filepath.Join(directory(t), variants["plain container"])))
	spec := m.set.Spec.Template.Spec
	if len(spec.InitContainers) != 1 || len(spec.Containers) != 2 || m.container(t, "holdfast").RestartPolicy != nil {
		t.Error("plain container: the sidecar is no container as the broker is")
	}
	if own := m.container(t, "holdfast").Lifecycle; own == nil || !slices.Contains(own.PreStop.Exec.Command, "leave") || !slices.Contains(own.PreStop.Exec.Command, "--with-sidecar") {
		t.Error("plain container: nothing holds the sidecar back until the broker has left")
	}
}

func isNative(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	if len(spec.InitContainers) != 2 || spec.InitContainers[0].Name != "holdfast-install" || spec.InitContainers[1].Name != "holdfast" ||
		spec.InitContainers[1].RestartPolicy == nil || *spec.InitContainers[1].RestartPolicy != corev1.ContainerRestartPolicyAlways || len(spec.Containers) != 1 {
		t.Error("base: the sidecar is no native one")
	}
}

// The sidecar takes its settings; that nobody answers is another exit code than that a
// setting is wrong.
func TestTheSidecarTakesItsSettings(t *testing.T) {
	binary, err := harness.Build(harness.Holdfast)
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, m *manifests) {
		dir := t.TempDir()
		c := m.container(t, "holdfast")
		file := filepath.Join(dir, "holdfast.yaml")
		text := strings.NewReplacer("/var/lib/holdfast", dir, "data-dir: /data", "data-dir: "+dir, "127.0.0.1:4222", "127.0.0.1:1", "127.0.0.1:8222", "127.0.0.1:1",
			"http://etcd:2379", "http://127.0.0.1:1").Replace(m.settings["holdfast"].Data["holdfast.yaml"])
		write(t, file, text)
		write(t, filepath.Join(dir, "password"), "secret\n")
		authority, err := harness.ForTest(t).NewAuthority("etcd")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(authority.CACert, filepath.Join(dir, "ca.crt")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.Args, []string{"run", "--config", "/etc/holdfast/holdfast.yaml"}) {
			t.Fatalf("it is started with %q", c.Args)
		}
		cmd := exec.CommandContext(t.Context(), binary, "check", "--config", file)
		cmd.Env = os.Environ()
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "HOLDFAST_") {
				value := strings.NewReplacer("$(POD_NAME)", "nats-0", "$(POD_NAMESPACE)", "default", "/etc/holdfast-etcd", dir, "https://etcd:2379", "https://127.0.0.1:1").Replace(e.Value)
				cmd.Env = append(cmd.Env, e.Name+"="+value)
			}
		}
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 1 {
			t.Errorf("check ends with %d, want 1 because nobody answers: %v\n%s", code, err, out)
		}
	})
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What etcd-roles.sh grants one broker is what the page about security does, which is
// tried there on a real etcd.
func TestTheScriptGrantsWhatThePageDoes(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "etcdctl"), []byte("#!/bin/sh\n[ \"$2\" != get ] || exit ${GET:-1}\necho etcdctl \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	grants := func(env []string, brokers ...string) []string {
		cmd := exec.CommandContext(t.Context(), filepath.Join(directory(t), "etcd-roles.sh"), brokers...)
		cmd.Env = append(append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH")), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		return lines
	}
	page, err := os.ReadFile(filepath.Join(directory(t), "../../docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```\n(etcdctl role .*?)^```$").FindAllStringSubmatch(string(page), 3)
	if len(blocks) < 3 {
		t.Fatal("the page has no grants")
	}
	want := []string{"etcdctl user add holdfast-n1 --interactive=false", "etcdctl user grant-role holdfast-n1 holdfast-n1"}
	add := func(block []string) {
		want = append(want, strings.Split(strings.TrimSpace(block[1]), "\n")...)
		slices.Sort(want)
	}
	add(blocks[0])
	if got := grants([]string{"USER_NAME=holdfast-n1"}, "n1"); !slices.Equal(got, want) {
		t.Errorf("the script grants\n%s\nthe page\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	add(blocks[1])
	add(blocks[2])
	if got := grants([]string{"USER_NAME=holdfast-n1", "MOVES=1"}, "n1"); !slices.Equal(got, want) {
		t.Errorf("with MOVES=1 the script grants\n%s\nthe page\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range grants([]string{"GET=0"}, "nats-3") {
		if strings.Contains(line, "role add") || strings.Contains(line, "user add") {
			t.Errorf("for one more broker it fails at what is there: %s", line)
		}
	}
	for _, line := range grants([]string{"PREFIX=/prod"}, "nats-0", "nats-1") {
		if strings.Contains(line, "grant-permission") && !strings.Contains(line, " /prod/") {
			t.Errorf("beside the prefix: %s", line)
		}
	}
}
