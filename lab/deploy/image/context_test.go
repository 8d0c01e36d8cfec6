package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/lab/harness"
)

// What these say holds without a Docker daemon, too.

func rootFile(t *testing.T, name string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryPackageOfTheProgramIsInTheBuildContext(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if and .Module .Module.Main}}{{.ImportPath}}{{end}}", ".")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	let := strings.Split(rootFile(t, ".dockerignore"), "\n")
	needed := 0
	for _, path := range strings.Fields(string(out)) {
		_, below, deep := strings.Cut(path, "/")
		if !deep {
			continue
		}
		top, _, _ := strings.Cut(below, "/")
		if needed++; !slices.Contains(let, "!"+top) {
			t.Errorf(".dockerignore leaves out %s, which the program needs", top)
		}
	}
	if needed < 5 {
		t.Errorf("only %d packages", needed)
	}
}

func TestTheDockerfileTakesItsFlagsFromTheMakefile(t *testing.T) {
	text := rootFile(t, "Dockerfile")
	for _, want := range []string{"FROM --platform=$BUILDPLATFORM ${BUILDER} AS build", "GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION=$VERSION",
		"\nARG BASE=scratch\n", "\nUSER 65532:65532\n", "CMD [\"/holdfast\", \"healthcheck\"]"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "go build") {
		t.Error("it builds with flags of its own")
	}
}
