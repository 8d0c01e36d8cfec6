package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"holdfast/lab/harness"
)

// pod is one of deploy/kubernetes, played by Docker: each container with the
// image, arguments, environment, mounts, user and rights that it has there, all in one
// network and one process namespace. What there is of Kubernetes in it is this file.
type pod struct {
	*daemon
	t       *testing.T
	name    string
	spec    corev1.PodSpec
	volumes map[string]string // directories of the host
	images  map[string]string
	pause   string // process that holds the namespaces, as the host numbers it
}

// podTTL is shorter than the manifest's, which would have the test wait for longer.
const podTTL = 15 * time.Second

// manifest is the pod that a directory of deploy/kubernetes renders to.
func manifest(t *testing.T, dir string) corev1.PodSpec {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, "deploy", "kubernetes", dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range built.Resources() {
		if r.GetKind() != "StatefulSet" {
			continue
		}
		raw, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		var set appsv1.StatefulSet
		if err := yaml.UnmarshalStrict(raw, &set); err != nil {
			t.Fatal(err)
		}
		return set.Spec.Template.Spec
	}
	t.Fatalf("no StatefulSet in %s", dir)
	return corev1.PodSpec{}
}

// newPod starts what holds a pod's namespaces, and brings etcd into them.
func newPod(t *testing.T, d *daemon, name, holdfast string, etcd *harness.Etcd) *pod {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{daemon: d, t: t, name: name, spec: manifest(t, "base"), volumes: map[string]string{},
		images: map[string]string{"holdfast": holdfast, "nats": natsImage}}
	for _, name := range []string{"data", "run"} {
		p.empty(name)
	}
	for volume, file := range map[string]string{"nats-config": "nats.conf", "holdfast-config": "holdfast.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "base", file))
		if err != nil {
			t.Fatal(err)
		}
		p.volumes[volume] = t.TempDir()
		if err := os.WriteFile(filepath.Join(p.volumes[volume], file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Registered after the volumes: it runs before they are removed, and a container that still
	// writes into one would put files back.
	t.Cleanup(p.remove)
	d.must(t, "run", "--detach", "--name="+p.of("pause"), "--network=none", "--add-host=etcd:127.0.0.1", builder,
		"/bin/bash", "-c", "trap exit TERM; coproc cat; while :; do read -t 1 -u ${COPROC[0]}; done")
	p.pause = d.must(t, "inspect", "--format", "{{.State.Pid}}", p.of("pause"))
	p.forward("127.0.0.1:2379", strings.TrimPrefix(etcd.Endpoint(), "http://"))
	return p
}

// of is what Docker calls a container of the pod.
func (p *pod) of(container string) string { return p.name + "-" + container }

// empty gives the pod a volume with nothing in it.
func (p *pod) empty(volume string) {
	p.t.Helper()
	p.volumes[volume] = p.t.TempDir()
	if err := os.Chown(p.volumes[volume], 65532, 65532); err != nil { // fsGroup
		p.t.Fatal(err)
	}
}

// remove ends whatever of the pod there is, at once.
func (p *pod) remove() {
	ctx := context.WithoutCancel(p.t.Context())
	for _, name := range []string{"nats", "holdfast", "holdfast-install", "pause"} {
		if out, err := p.docker(ctx, nil, "rm", "--force", p.of(name)); err != nil && !strings.Contains(err.Error(), "No such container") {
			p.t.Errorf("%s is not removed: %v %s", p.of(name), err, out)
		}
	}
}

// natsImage holds the lab's NATS server and nothing else.
const natsImage = "nats:test"

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
	args := []string{"run", "--name=" + p.of(name), "--user=" + user, "--network=container:" + p.of("pause"), "--no-healthcheck"}
	if p.spec.ShareProcessNamespace != nil && *p.spec.ShareProcessNamespace {
		args = append(args, "--pid=container:"+p.of("pause"))
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
	env := strings.NewReplacer("$(POD_NAME)", p.name, "$(POD_NAMESPACE)", "broker")
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
		if v.SubPath != "" {
			dir = filepath.Join(dir, v.SubPath)
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, 65532, 65532)); err != nil {
				p.t.Fatal(err)
			}
		}
		mount := dir + ":" + v.MountPath
		if v.ReadOnly {
			mount += ":ro"
		}
		args = append(args, "--volume="+mount)
	}
	image, _, _ := strings.Cut(c.Image, ":")
	args = append(args, p.images[image])
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

// dial connects within the pod's network.
func (p *pod) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	within := p.within(func() { conn, err = (&net.Dialer{}).DialContext(ctx, network, address) })
	return conn, errors.Join(within, err)
}

// within runs do on a thread in the pod's network. A socket belongs to the namespace that it
// was made in, and the thread that was there ends with its goroutine.
func (p *pod) within(do func()) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Open("/proc/"+p.pause+"/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	return <-done
}

// forward has who connects to an address in the pod's network be connected to one of the host.
func (p *pod) forward(from, to string) {
	p.t.Helper()
	var l net.Listener
	var err error
	if within := p.within(func() { l, err = net.Listen("tcp", from) }); within != nil || err != nil {
		p.t.Fatal(errors.Join(within, err))
	}
	p.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { defer out.Close(); _, _ = io.Copy(out, in) }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
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
	if err := json.Unmarshal([]byte(p.must(p.t, "exec", p.of("holdfast"), "/holdfast", "status", "-o", "json")), &s); err != nil {
		p.t.Fatal(err)
	}
	return s
}

// log is the end of what a container has said.
func (p *pod) log(name string) string {
	at, err := p.docker(context.WithoutCancel(p.t.Context()), nil, "inspect", "--format", "{{.LogPath}}", p.of(name))
	if err != nil {
		return err.Error()
	}
	raw, _ := os.ReadFile(strings.TrimSpace(at))
	return string(raw[max(0, len(raw)-6000):])
}

func (p *pod) running(ctx context.Context, name string) bool {
	out, err := p.docker(ctx, nil, "inspect", "--format", "{{.State.Running}}", p.of(name))
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

// theSetWorks plays the life of three pods: first of one, then an update of all.
func theSetWorks(t *testing.T, d *daemon, holdfast string) {
	etcd, err := harness.ForTest(t).StartEtcd(t.Context(), harness.EtcdOptions{})
	if err != nil {
		t.Fatal(err)
	}
	importProgram(t, d, harness.NATSServer, "nats-server", natsImage)
	set := make([]*pod, 3)
	for i := range set {
		set[i] = newPod(t, d, fmt.Sprintf("nats-%d", i), holdfast, etcd)
	}
	defer func() {
		if !t.Failed() {
			return
		}
		for _, p := range set {
			for _, name := range []string{"holdfast", "nats"} {
				t.Logf("---- %s\n%s", p.of(name), p.log(name))
			}
		}
	}()
	set[0].lives()
	for _, p := range set[1:] {
		p.begin()
		p.awaitReady()
	}
	// A pod ends by what it was made from: the plain containers do in the third update.
	for _, update := range []string{"base", "overlays/plain-container", "base"} {
		for _, p := range set {
			if err := p.end(); err != nil {
				t.Errorf("%s does not leave: %v", p.name, err)
			}
			p.spec = manifest(t, update)
			p.begin()
			p.awaitReady()
			if s := p.status(); s.Mode != "active" || s.Reason != "planned_restart" || !s.Ready.OK {
				t.Errorf("updated to %s: %s came back %s (%s), ready %t", update, p.name, s.Mode, s.Reason, s.Ready.OK)
			}
		}
	}
	for _, p := range set {
		if s := p.status(); s.Mode != "active" || !s.Ready.OK {
			t.Errorf("%s ends %s (%s)", p.name, s.Mode, s.Reason)
		}
	}
}

// lives plays the life of the first pod: its start, and what befalls its containers.
func (p *pod) lives() {
	t, d := p.t, p.daemon
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
	d.must(t, "kill", p.of("holdfast"))
	d.must(t, "start", p.of("holdfast"))
	p.await("the pod to be ready again", sidecar.ReadinessProbe, http.StatusOK)
	if after := p.status().Registration.CreateRevision; after != before || before == 0 {
		t.Errorf("registered at %d and at %d after the container was killed", before, after)
	}
	if !p.running(t.Context(), "nats") {
		t.Error("the broker ended with its sidecar")
	}

	// Across containers, without a capability: the guard stops the broker of a sidecar
	// that is frozen.
	events := d.must(t, "exec", p.of("holdfast"), "/holdfast", "events")
	if !strings.Contains(events, "guard") {
		t.Errorf("no word of a guard:\n%s", events)
	}
	d.must(t, "kill", "--signal=STOP", p.of("holdfast"))
	p.awaitEnd("nats")
	d.must(t, "kill", "--signal=CONT", p.of("holdfast"))
	d.must(t, "start", p.of("nats"))
	err := harness.Await(t.Context(), time.Minute, "the broker to be activated", func(ctx context.Context) (bool, string) {
		out, err := d.docker(ctx, nil, "exec", p.of("holdfast"), "/holdfast", "activate")
		return err == nil, fmt.Sprint(out, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.await("the pod to be ready after that", sidecar.ReadinessProbe, http.StatusOK)
}

// begin starts the pod's containers in the order of the kubelet.
func (p *pod) begin() {
	p.t.Helper()
	p.empty("run")
	p.start("holdfast-install", true)
	p.start("holdfast", false)
	if sidecar := p.container("holdfast"); sidecar.RestartPolicy != nil {
		p.await("the startup probe, which the broker's start waits for", sidecar.StartupProbe, http.StatusOK)
	}
	p.start("nats", false)
}

func (p *pod) awaitReady() {
	p.t.Helper()
	p.await(p.name+" to be ready", p.container("holdfast").ReadinessProbe, http.StatusOK)
	p.awaitRecognition()
}

// awaitRecognition waits until the sidecar knows the broker's process, which takes it up to a
// health interval more. The end of one that it does not know proves nothing to it.
func (p *pod) awaitRecognition() {
	p.t.Helper()
	err := harness.Await(p.t.Context(), time.Minute, "the broker's process to be recognized", func(context.Context) (bool, string) {
		said := p.log("holdfast")
		return strings.Contains(said, "the broker's process is recognized"), said
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// end ends the pod's containers as the kubelet does: all at once, each by its preStop and
// then by SIGTERM; a native sidecar when the others have ended. Then they are gone. The
// error is what the preStops say.
func (p *pod) end() error {
	p.t.Helper()
	var pre, failed [2]error
	var all sync.WaitGroup
	for i, c := range p.spec.Containers {
		all.Go(func() { pre[i], failed[i] = p.stop(c) })
	}
	all.Wait()
	err := errors.Join(failed[:]...)
	for _, c := range p.spec.InitContainers {
		if c.RestartPolicy != nil {
			_, stopped := p.stop(c)
			err = errors.Join(err, stopped)
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if code := p.must(p.t, "inspect", "--format", "{{.State.ExitCode}}", p.of("holdfast")); code != "0" {
		p.t.Errorf("the sidecar of %s ended with %s:\n%s", p.name, code, p.log("holdfast"))
	}
	p.must(p.t, "rm", p.of("nats"), p.of("holdfast"), p.of("holdfast-install"))
	return errors.Join(pre[:]...)
}

// stop ends one container as the kubelet does: a preStop that fails does not keep it. One
// that finds no sidecar has not failed where the sidecar's own may be the first of two.
func (p *pod) stop(c corev1.Container) (pre, err error) {
	ctx := p.t.Context()
	if c.Lifecycle != nil {
		_, pre = p.docker(ctx, nil, append([]string{"exec", p.of(c.Name)}, c.Lifecycle.PreStop.Exec.Command...)...)
	}
	if pre != nil && strings.Contains(pre.Error(), "no sidecar answers") && p.container("holdfast").RestartPolicy == nil {
		pre = nil
	}
	_, err = p.docker(ctx, nil, "stop", "--time=30", p.of(c.Name))
	return pre, err
}
