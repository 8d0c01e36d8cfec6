package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"holdfast/agent/config"
	"holdfast/agent/control"
)

// What is written down for people is held to the program: every command, every file of
// settings, every setting and every link, on every page of the repository.

// everyPage lists what is written in Markdown, apart from what tests read.
func everyPage(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(path, ".md") {
			list = append(list, path)
		}
		return nil
	})
	if err != nil || len(list) < 5 {
		t.Fatalf("pages %v (%v)", list, err)
	}
	return list
}

var (
	inlineCommand = regexp.MustCompile("`(holdfast [^`]+)`")
	// blockCommand is a command at the start of a line, after a prompt, another user, a
	// unit's ExecStart or a way into a container.
	blockCommand = regexp.MustCompile(`(?m)^(?:\$ |sudo |sudo -u \S+ |Exec\w+=\S*/|.* -- )*(holdfast (?:.*\\\n)*.*)$`)
	shellWord    = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	shellRest    = regexp.MustCompile(`\s+(#|\||>|&&|&|;).*$`)
	shortened    = regexp.MustCompile(`^\W*[A-Z]+\W*$`)
)

// commands are those that a page tells to type, one line each.
func commands(text string) []string {
	var all []string
	for _, m := range inlineCommand.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, m[1])
	}
	for _, block := range fenced.FindAllStringSubmatch(text, -1) {
		for _, m := range blockCommand.FindAllStringSubmatch(block[2], -1) {
			all = append(all, strings.ReplaceAll(m[1], "\\\n", " "))
		}
	}
	return all
}

// tryCommand has our own command line take the words, as far as it comes without a
// sidecar, an etcd or a broker. A command that is shortened is looked at as far as it goes.
func tryCommand(line string) error {
	words := shellWord.FindAllString(shellRest.ReplaceAllString(line, ""), -1)[1:]
	for i := range words {
		words[i] = strings.Trim(words[i], `'"`)
	}
	all := newApp(&output{to: io.Discard}, io.Discard).Commands
	at := slices.IndexFunc(all, func(v *cli.Command) bool { return v.Name == strings.TrimRight(words[0], ".,:") })
	if at < 0 {
		return fmt.Errorf("no verb %q", words[0])
	}
	v, words := all[at], words[1:]
	if len(words) == 0 {
		return nil // its name
	}
	short := false
	for _, w := range words {
		if w == "--" {
			break
		}
		if name, _, _ := strings.Cut(strings.TrimLeft(w, "[-"), "="); strings.HasPrefix(strings.TrimLeft(w, "["), "--") && !knows(v, strings.TrimRight(name, "].,")) {
			return fmt.Errorf("%s has no flag %s", v.Name, w)
		}
		short = short || strings.ContainsAny(w, "…[]|") || shortened.MatchString(w)
	}
	if short {
		return nil
	}
	if v.ArgsUsage == startsOne || v.Name == "fleet" { // these would begin, and are tried by their settings
		c, cmd := config.Sources{Flags: map[string][]string{}}, []string(nil)
		for i := 0; i < len(words); i++ {
			if words[i] == "--" {
				cmd = words[i+1:]
				break
			}
			name, value, given := strings.Cut(strings.TrimPrefix(words[i], "--"), "=")
			if name == "config" || name == "help" {
				return nil // the file is looked at by itself
			}
			if !given {
				value = "true"
				if takesValue(v, name) && i+1 < len(words) {
					i++
					value = words[i]
				}
			}
			c.Flags[name] = append(c.Flags[name], value)
		}
		c.Command = cmd
		if v.Name == "fleet" {
			c.Only = etcdSettings()
		}
		_, err := config.Load(c)
		return err
	}
	if v.Name == "install" {
		return nil
	}
	if knows(v, "control-socket") {
		words = append([]string{"--control-socket", "/nonexistent/control.sock"}, words...)
	}
	var said strings.Builder
	if code := run(append([]string{"holdfast", v.Name}, words...), io.Discard, &said); code == control.ExitUsage {
		return errors.New(strings.TrimSpace(said.String()))
	}
	return nil
}

func knows(v *cli.Command, name string) bool {
	return name == "help" || slices.ContainsFunc(v.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
}

func takesValue(v *cli.Command, name string) bool {
	i := slices.IndexFunc(v.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	return v.Flags[i].(cli.DocGenerationFlag).TakesValue()
}

func TestACommandThatIsNoneIsSeen(t *testing.T) {
	for _, c := range []string{"holdfast halt", "holdfast status --colour", "holdfast drain now", "holdfast pause --for 30m",
		"holdfast run --driver kafka", "holdfast explain 1 2", "holdfast run --driver nats --lease-ttl 1.5s"} {
		if tryCommand(c) == nil {
			t.Errorf("%s is taken for a command", c)
		}
	}
	text := "`holdfast one`\n```\n$ holdfast two \\\n  --more\nExecStart=/usr/local/bin/holdfast three\nkubectl exec n1-0 -c holdfast -- holdfast four\nthe holdfast five\n```\n"
	if got, want := strings.Join(commands(text), "; "), "holdfast one; holdfast two    --more; holdfast three; holdfast four"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}

// A block that names a driver is a file of settings. Others, as of Kubernetes, are left to
// the tests of what they belong to, and must only be YAML.
func TestEveryYAMLOnThePagesCanBeRead(t *testing.T) {
	for _, page := range everyPage(t) {
		for _, block := range fenced.FindAllStringSubmatch(read(t, page), -1) {
			if block[1] != "yaml" {
				continue
			}
			dec := yaml.NewDecoder(strings.NewReader(block[2]))
			for {
				var any yaml.Node
				if err := dec.Decode(&any); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Errorf("%s: %v in\n%s", page, err, block[2])
					break
				}
			}
			if !regexp.MustCompile(`(?m)^driver:`).MatchString(block[2]) {
				continue
			}
			if _, err := config.Load(config.Sources{File: page, Read: func(string) ([]byte, error) { return []byte(block[2]), nil }}); err != nil {
				t.Errorf("%s: %v in\n%s", page, err, block[2])
			}
		}
	}
}

var setting = regexp.MustCompile("`--([a-z-]+)")

func TestThePagesNameFlagsThatThereAre(t *testing.T) {
	known := []string{"help", "version", "stay"}
	for _, v := range newApp(&output{to: io.Discard}, io.Discard).Commands {
		for _, f := range v.Flags {
			known = append(known, f.Names()[0])
		}
	}
	for _, page := range everyPage(t) {
		for _, m := range setting.FindAllStringSubmatch(read(t, page), -1) {
			if !slices.Contains(known, strings.TrimSuffix(m[1], "-")) {
				t.Errorf("%s: no flag is called --%s", page, m[1])
			}
		}
	}
}

var (
	linked  = regexp.MustCompile(`(?:\]\(|\bsrc(?:set)?=")([^)"\s]+)[)"]`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	marks   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are those that a page's headings get, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// named is a file of ours where a page names it, as in a command.
var named = regexp.MustCompile(`(?:^|[\s(\x60"'])((?:alerts|dashboards|deploy|docs)/[\w./-]*\w)`)

func TestEveryLinkOnThePagesLeadsSomewhere(t *testing.T) {
	for _, page := range everyPage(t) {
		for _, m := range named.FindAllStringSubmatch(linked.ReplaceAllString(read(t, page), ""), -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s: names %s: %v", page, m[1], err)
			}
		}
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, page), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if to != "" {
				target = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
			} else if anchor != "" && strings.HasSuffix(target, ".md") && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s: link to %s, which has no such heading: %v", page, m[1], anchors(read(t, target)))
			}
		}
	}
}

// sources are our own programs' texts, without tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, p := range ours(t) {
		for _, name := range p.GoFiles {
			all.WriteString(read(t, filepath.Join(p.Dir, name)))
		}
	}
	return all.String()
}

func TestThePagesNameMetricsAndAlertsThatThereAre(t *testing.T) {
	exported := sources(t)
	rules, err := os.ReadFile("alerts/holdfast.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`\bholdfast_[a-z_]+[a-z]\b`)
	alert := regexp.MustCompile(`\bHoldfast[A-Z][A-Za-z]+\b`)
	gone := regexp.MustCompile(`(?s)\n## What is gone\n.*?\n## `)
	for _, page := range everyPage(t) {
		text := gone.ReplaceAllString(read(t, page), "")
		for _, name := range metric.FindAllString(text, -1) {
			short := strings.TrimPrefix(name, "holdfast_") // some are put together from the two
			if !strings.Contains(exported, `"`+name+`"`) && !strings.Contains(exported, `"`+short+`"`) {
				t.Errorf("%s: no metric is called %s", page, name)
			}
		}
		for _, name := range alert.FindAllString(text, -1) {
			if !strings.Contains(string(rules), name) {
				t.Errorf("%s: no alert is called %s", page, name)
			}
		}
	}
}
