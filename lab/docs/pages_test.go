// Package docs holds what the pages show of other programs' files to those programs.
package docs

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/config"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

var block = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func TestFilesOfOtherProgramsAreWhatTheyTake(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	prometheus, pods := 0, 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			switch {
			case strings.HasPrefix(m[1], "scrape_configs:"):
				prometheus++
				if _, err := config.Load(m[1], slog.New(slog.DiscardHandler)); err != nil {
					t.Errorf("%s: Prometheus does not take it: %v\n%s", page, err, m[1])
				}
			case strings.Contains(m[1], "containers:"):
				pods++
				var pod corev1.Pod
				if err := yaml.UnmarshalStrict([]byte(m[1]), &pod); err != nil {
					t.Errorf("%s: Kubernetes does not take it: %v\n%s", page, err, m[1])
				}
				if len(pod.Spec.Containers) == 0 {
					t.Errorf("%s: a pod without containers\n%s", page, m[1])
				}
			}
		}
	}
	if prometheus == 0 || pods == 0 {
		t.Errorf("%d files for Prometheus, %d pods: want some of each", prometheus, pods)
	}
}
