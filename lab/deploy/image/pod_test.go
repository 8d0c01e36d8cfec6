package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"holdfast/lab/harness"
)

// pod is the one of deploy/kubernetes/base, played by Docker: each container with the
// image, arguments, environment, mounts, user and rights that it has there, all in one
// network and one process namespace. What there is of Kubernetes in it is this file.
type pod struct {
	*daemon
	t       *testing.T
	spec    corev1.PodSpec
	volumes map[string]string // directories of the host
	images  map[string]string
	pause   string // process that holds the namespaces, as the host numbers it
}

// podTTL is shorter than the manifest's, which would have the test wait for longer.
const podTTL = 15 * time.Second

// startPod starts what holds the namespaces, and in them an etcd.
func startPod(t *testing.T, d *daemon, holdfast string) *pod {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(root, "deploy", "kubernetes", "base")
	raw, err := os.ReadFile(filepath.Join(base, "statefulset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.StatefulSet
	if err := yaml.UnmarshalStrict(raw, &set); err != nil {
		t.Fatal(err)
	}
	p := &pod{daemon: d, t: t, spec: set.Spec.Template.Spec, volumes: map[string]string{},
		images: map[string]string{"holdfast": holdfast, "nats": "nats:test"}}
	for _, name := range []string{"data", "state", "run"} {
		p.volumes[name] = t.TempDir()
		if err := os.Chown(p.volumes[name], 65532, 65532); err != nil { // fsGroup
			t.Fatal(err)
		}
	}
	for volume, file := range map[string]string{"nats-config": "nats.conf", "holdfast-config": "holdfast.yaml"} {
		text, err := os.ReadFile(filepath.Join(base, file))
		if err != nil {
			t.Fatal(err)
		}
		p.volumes[volume] = t.TempDir()
		if err := os.WriteFile(filepath.Join(p.volumes[volume], file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	importProgram(t, d, harness.NATSServer, "nats-server", "nats:test")
	importProgram(t, d, harness.EtcdServer, "bin/etcd", "etcd:test")
	d.must(t, "run", "--detach", "--name=pause", "--network=none", "--add-host=etcd:127.0.0.1", builder,
		"/bin/bash", "-c", "trap exit TERM; coproc cat; while :; do read -t 1 -u ${COPROC[0]}; done")
	p.pause = d.must(t, "inspect", "--format", "{{.State.Pid}}", "pause")
	d.must(t, "run", "--detach", "--name=etcd", "--network=container:pause", "--tmpfs=/etcd", "etcd:test", "/bin/etcd", "--data-dir=/etcd/data",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--log-level=warn")
	return p
}

// importProgram makes an image of one of the lab's programs.
func importProgram(t *testing.T, d *daemon, program harness.Program, at, name string) {
	t.Helper()
	path, err := harness.Build(program)
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	go func() {
		w := &image{tar.NewWriter(writer), map[string]bool{}}
		err := w.program(path, at)
		if err == nil {
			err = w.Close()
		}
		writer.CloseWithError(err)
	}()
	_, err = d.docker(t.Context(), reader, "import", "--platform", "linux/"+runtime.GOARCH, "-", name)
	reader.Close()
	if err != nil {
		t.Fatal(err)
	}
}

func (p *pod) container(name string) corev1.Container {
	p.t.Helper()
	for _, c := range append(p.spec.InitContainers, p.spec.Containers...) {
		if c.Name == name {
			return c
		}
	}
	p.t.Fatalf("no container %s", name)
	return corev1.Container{}
}

// start runs one of the pod's containers, in the background unless it is to end by itself.
func (p *pod) start(name string, ends bool) string {
	p.t.Helper()
	c := p.container(name)
	user := fmt.Sprintf("%d:%d", *p.spec.SecurityContext.RunAsUser, *p.spec.SecurityContext.RunAsGroup)
	args := []string{"run", "--name=" + name, "--user=" + user, "--network=container:pause", "--no-healthcheck"}
	if p.spec.ShareProcessNamespace != nil && *p.spec.ShareProcessNamespace {
		args = append(args, "--pid=container:pause")
	}
	if *c.SecurityContext.ReadOnlyRootFilesystem {
		args = append(args, "--read-only")
	}
	if !*c.SecurityContext.AllowPrivilegeEscalation {
		args = append(args, "--security-opt=no-new-privileges")
	}
	for _, drop := range c.SecurityContext.Capabilities.Drop {
		args = append(args, "--cap-drop="+string(drop))
	}
	args = append(args, fmt.Sprintf("--memory=%d", c.Resources.Limits.Memory().Value()))
	if !ends {
		args = append(args, "--detach")
	}
	env := strings.NewReplacer("$(POD_NAME)", "nats-0", "$(POD_NAMESPACE)", "broker")
	for _, e := range c.Env {
		value := env.Replace(e.Value)
		if e.ValueFrom != nil {
			value = env.Replace(map[string]string{"metadata.name": "$(POD_NAME)", "metadata.namespace": "$(POD_NAMESPACE)"}[e.ValueFrom.FieldRef.FieldPath])
		}
		args = append(args, "--env="+e.Name+"="+value)
	}
	args = append(args, "--env=HOLDFAST_LEASE_TTL="+podTTL.String())
	for _, v := range c.VolumeMounts {
		dir, ok := p.volumes[v.Name]
		if !ok {
			p.t.Fatalf("%s mounts %s", name, v.Name)
		}
		mount := dir + ":" + v.MountPath
		if v.ReadOnly {
			mount += ":ro"
		}
		args = append(args, "--volume="+mount)
	}
	args = append(args, p.images[c.Image])
	return p.must(p.t, slices.Concat(args, c.Command, c.Args)...) // no image with a command has an entry point here
}

// get asks a probe, as the kubelet does.
func (p *pod) get(ctx context.Context, probe *corev1.Probe) (int, string) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9808"+probe.HTTPGet.Path, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return resp.StatusCode, string(body)
}

// dial connects within the pod's network. A socket belongs to the namespace that it was
// made in, and the thread that was there ends with its goroutine.
func (p *pod) dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Open("/proc/"+p.pause+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err != nil {
			done <- result{nil, err}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (p *pod) await(what string, probe *corev1.Probe, want int) {
	p.t.Helper()
	err := harness.Await(p.t.Context(), time.Minute, what, func(ctx context.Context) (bool, string) {
		code, body := p.get(ctx, probe)
		return code == want, fmt.Sprint(code, " ", body)
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) status() (s harness.Status) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.must(p.t, "exec", "holdfast", "/holdfast", "status", "-o", "json")), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *pod) running(ctx context.Context, name string) bool {
	out, err := p.docker(ctx, nil, "inspect", "--format", "{{.State.Running}}", name)
	return err == nil && strings.TrimSpace(out) == "true"
}

func (p *pod) awaitEnd(name string) {
	p.t.Helper()
	err := harness.Await(p.t.Context(), time.Minute, "the end of "+name, func(ctx context.Context) (bool, string) {
		return !p.running(ctx, name), "it runs"
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// thePodWorks plays the life of a pod.
func thePodWorks(t *testing.T, d *daemon, holdfast string) {
	p := startPod(t, d, holdfast)
	defer func() {
		if !t.Failed() {
			return
		}
		for _, name := range []string{"holdfast", "nats", "etcd"} {
			log, _ := os.ReadFile(d.must(t, "inspect", "--format", "{{.LogPath}}", name))
			t.Logf("---- %s\n%s", name, log[max(0, len(log)-6000):])
		}
	}()
	sidecar, broker := p.container("holdfast"), p.container("nats")

	p.start("holdfast-install", true)
	p.start("holdfast", false)
	p.await("the startup probe, which the broker's start waits for", sidecar.StartupProbe, http.StatusOK)
	if code, _ := p.get(t.Context(), sidecar.ReadinessProbe); code != http.StatusServiceUnavailable {
		t.Errorf("ready without a broker: %d", code)
	}
	p.start("nats", false)
	p.await("the pod to be ready", sidecar.ReadinessProbe, http.StatusOK)
	p.await("the broker's own probe", broker.LivenessProbe, http.StatusOK)
	if s := p.status(); s.BrokerID != "nats-0" || s.Mode != "active" || s.Boot.Kind != "first_boot" {
		t.Errorf("status %+v", s)
	}

	// The state outlives the container: the next one takes up the same registration.
	before := p.status().Registration.CreateRevision
	d.must(t, "kill", "holdfast")
	d.must(t, "start", "holdfast")
	p.await("the pod to be ready again", sidecar.ReadinessProbe, http.StatusOK)
	if after := p.status().Registration.CreateRevision; after != before || before == 0 {
		t.Errorf("registered at %d and at %d after the container was killed", before, after)
	}
	if !p.running(t.Context(), "nats") {
		t.Error("the broker ended with its sidecar")
	}

	// Across containers, without a capability: the guard stops the broker of a sidecar
	// that is frozen.
	events := d.must(t, "exec", "holdfast", "/holdfast", "events")
	if !strings.Contains(events, "guard") {
		t.Errorf("no word of a guard:\n%s", events)
	}
	d.must(t, "kill", "--signal=STOP", "holdfast")
	p.awaitEnd("nats")
	d.must(t, "kill", "--signal=CONT", "holdfast")
	d.must(t, "start", "nats")
	err := harness.Await(t.Context(), time.Minute, "the broker to be activated", func(ctx context.Context) (bool, string) {
		out, err := d.docker(ctx, nil, "exec", "holdfast", "/holdfast", "activate")
		return err == nil, fmt.Sprint(out, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.await("the pod to be ready after that", sidecar.ReadinessProbe, http.StatusOK)

	// The end of the pod: preStop in the broker's container, the broker, the sidecar.
	out := d.must(t, append([]string{"exec", "nats"}, broker.Lifecycle.PreStop.Exec.Command...)...)
	if !strings.Contains(out, "nats-0: mode drained (pod_stop)") {
		t.Errorf("preStop says %q", out)
	}
	p.await("the pod to be unready", sidecar.ReadinessProbe, http.StatusServiceUnavailable)
	d.must(t, "stop", "nats")
	d.must(t, "stop", "--time=30", "holdfast")
	if code := d.must(t, "inspect", "--format", "{{.State.ExitCode}}", "holdfast"); code != "0" {
		t.Errorf("the sidecar ended with %s", code)
	}
}
