package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// PulsarJarsVariable may name a directory with the jars of lab/pulsar/pom.xml, where Maven
// cannot be asked for them.
const PulsarJarsVariable = "HOLDFAST_LAB_PULSAR"

const (
	leastJava   = 17              // what Pulsar 4.0 runs on
	mavenBound  = 5 * time.Minute // 238 MB
	jarsDoneTag = "pom.xml"       // a copy of the one that the jars were fetched for
)

// pulsarParts is what a real Pulsar cluster is made of.
type pulsarParts struct{ java, jars string }

// ErrNoPulsar is wrapped where this machine has not what a real Pulsar needs, for a test to
// skip with.
var ErrNoPulsar = errors.New("no real Pulsar here")

// PulsarParts finds Java and the jars, which it has Maven fetch into lab/.bin/pulsar-jars when
// they are not there. What is missing is ErrNoPulsar.
func PulsarParts(ctx context.Context) error {
	_, err := findPulsarParts(ctx)
	return err
}

func findPulsarParts(ctx context.Context) (p pulsarParts, err error) {
	if p.java, err = exec.LookPath("java"); err != nil {
		return p, fmt.Errorf("%w: no java on PATH; Pulsar wants Java %d or later", ErrNoPulsar, leastJava)
	}
	out, err := exec.CommandContext(ctx, p.java, "-version").CombinedOutput()
	if err != nil {
		return p, fmt.Errorf("ask %s for its version: %w: %s", p.java, err, out)
	}
	version := regexp.MustCompile(`version "(\d+)`).FindSubmatch(out)
	if version == nil {
		return p, fmt.Errorf("%s does not tell its version: %s", p.java, out)
	}
	if n, err := strconv.Atoi(string(version[1])); err != nil || n < leastJava {
		return p, fmt.Errorf("%w: %s is Java %s, and Pulsar wants %d or later", ErrNoPulsar, p.java, version[1], leastJava)
	}
	if p.jars = os.Getenv(PulsarJarsVariable); p.jars != "" {
		return p, nil
	}
	p.jars, err = fetchPulsarJars(ctx)
	return p, err
}

// fetchPulsarJars has Maven copy what is missing. Processes that ask at the same time take turns.
func fetchPulsarJars(ctx context.Context) (dir string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	pom := filepath.Join(root, "lab", "pulsar", "pom.xml")
	dir = filepath.Join(root, "lab", ".bin", "pulsar-jars")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make room for Pulsar's jars: %w", err)
	}
	unlock, err := lockFile(filepath.Join(root, "lab", ".bin", "pulsar-jars.lock"))
	if err != nil {
		return "", fmt.Errorf("fetch Pulsar's jars: %w", err)
	}
	defer unlock()
	wanted, err := os.ReadFile(pom)
	if err != nil {
		return "", fmt.Errorf("fetch Pulsar's jars: %w", err)
	}
	done := filepath.Join(dir, jarsDoneTag)
	if have, err := os.ReadFile(done); err == nil && string(have) == string(wanted) {
		return dir, nil
	}
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("%w: no mvn on PATH to fetch its jars with; %s may name a directory that has them", ErrNoPulsar, PulsarJarsVariable)
	}
	// Two releases in one directory would be one class path.
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("fetch Pulsar's jars: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, mavenBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, maven, "-q", "-B", "-f", pom, "dependency:copy-dependencies")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("%w: Maven cannot fetch its jars: %w: %s", ErrNoPulsar, err, strings.Join(lines[:min(3, len(lines))], "; "))
	}
	if err := os.WriteFile(done, wanted, 0o644); err != nil {
		return "", fmt.Errorf("fetch Pulsar's jars: %w", err)
	}
	return dir, nil
}

// command is java, its options for a small process, and the class to run.
func (p pulsarParts) command(log4j, class string, args ...string) (path string, all []string) {
	all = []string{
		"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:-UsePerfData",
		"-Dio.netty.tryReflectionSetAccessible=true",
		"-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
		"-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
		"-Dlog4j2.configurationFile=" + log4j,
	}
	for _, pkg := range []string{"java.base/java.io", "java.base/java.util.zip", "java.base/java.net", "java.base/java.nio", "java.base/sun.net",
		"java.base/java.lang", "java.base/jdk.internal.platform", "java.management/sun.management", "jdk.management/com.sun.management.internal"} {
		all = append(all, "--add-opens", pkg+"=ALL-UNNAMED")
	}
	return p.java, append(append(all, "-cp", filepath.Join(p.jars, "*"), class), args...)
}
