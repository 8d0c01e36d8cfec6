package kubernetes

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"holdfast/lab/harness"
)

// manifests is what was rendered, decoded by the API's types.
type manifests struct {
	set      *appsv1.StatefulSet
	service  *corev1.Service
	account  *corev1.ServiceAccount
	budget   *policyv1.PodDisruptionBudget
	policy   *networkingv1.NetworkPolicy
	monitor  *podMonitor
	rules    *prometheusRule
	settings map[string]*corev1.ConfigMap // by the name before its hash
}

// podMonitor is as much of the Prometheus operator's type as is used here.
type podMonitor struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		PodMetricsEndpoints []struct {
			Port        string `json:"port"`
			Path        string `json:"path"`
			Interval    string `json:"interval"`
			Relabelings []struct {
				SourceLabels []string `json:"sourceLabels"`
				TargetLabel  string   `json:"targetLabel"`
				Replacement  string   `json:"replacement"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// prometheusRule is the Prometheus operator's type; what is in the rules their own tests say.
type prometheusRule struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name     string           `json:"name"`
			Interval string           `json:"interval"`
			Rules    []map[string]any `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func directory(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "kubernetes")
}

// variants are what a user applies.
var variants = map[string]string{
	"base":            "base",
	"plain container": "overlays/plain-container",
}

// render renders a directory, by the library.
func render(t *testing.T, dir string) []byte {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("render %s: %v", dir, err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// withComponents is a directory that a user would write to have a variant with all others.
func withComponents(t *testing.T, variant string) string {
	t.Helper()
	components := []string{"alerts", "pod-monitor", "etcd-auth"}
	if variant != "base" {
		components = append(components, "plain-container")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	relative := func(to string) string {
		path, err := filepath.Rel(dir, filepath.Join(directory(t), to))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := "resources: [" + relative("base") + "]\ncomponents:\n"
	for _, c := range components {
		text += "  - " + relative("components/"+c) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// decode takes each document strictly: a field that the API does not know is an error.
func decode(t *testing.T, text []byte) *manifests {
	t.Helper()
	m := &manifests{settings: map[string]*corev1.ConfigMap{}}
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var head struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		var into any
		switch head.Kind {
		case "StatefulSet":
			m.set = &appsv1.StatefulSet{}
			into = m.set
		case "Service":
			m.service = &corev1.Service{}
			into = m.service
		case "ServiceAccount":
			m.account = &corev1.ServiceAccount{}
			into = m.account
		case "PodDisruptionBudget":
			m.budget = &policyv1.PodDisruptionBudget{}
			into = m.budget
		case "NetworkPolicy":
			m.policy = &networkingv1.NetworkPolicy{}
			into = m.policy
		case "PodMonitor":
			m.monitor = &podMonitor{}
			into = m.monitor
		case "PrometheusRule":
			m.rules = &prometheusRule{}
			into = m.rules
		case "ConfigMap":
			c := &corev1.ConfigMap{}
			name, _, _ := strings.Cut(head.Metadata.Name, "-")
			m.settings[name] = c
			into = c
		default:
			t.Fatalf("%s %s: no test knows it", head.Kind, head.Metadata.Name)
		}
		if err := yaml.UnmarshalStrict(doc, into); err != nil {
			t.Errorf("%s %s: %v", head.Kind, head.Metadata.Name, err)
		}
	}
	for what, missing := range map[string]bool{"StatefulSet": m.set == nil, "Service": m.service == nil, "ServiceAccount": m.account == nil,
		"PodDisruptionBudget": m.budget == nil, "NetworkPolicy": m.policy == nil, "ConfigMap of nats": m.settings["nats"] == nil,
		"ConfigMap of holdfast": m.settings["holdfast"] == nil} {
		if missing {
			t.Fatalf("no %s", what)
		}
	}
	return m
}

// each runs a test on every variant.
func each(t *testing.T, check func(t *testing.T, m *manifests)) {
	for name, dir := range variants {
		t.Run(name, func(t *testing.T) { check(t, decode(t, render(t, filepath.Join(directory(t), dir)))) })
		t.Run(name+" with all components", func(t *testing.T) {
			check(t, decode(t, render(t, withComponents(t, name))))
		})
	}
}

// container is one of the pod's, wherever it stands.
func (m *manifests) container(t *testing.T, name string) *corev1.Container {
	t.Helper()
	spec := &m.set.Spec.Template.Spec
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	t.Fatalf("no container %s", name)
	return nil
}

// all are the pod's containers.
func (m *manifests) all() []corev1.Container {
	spec := m.set.Spec.Template.Spec
	return slices.Concat(spec.InitContainers, spec.Containers)
}
