package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"holdfast/brokerapi"
)

// Sources is where settings come from. A flag wins over the environment, that
// over the file, and that over the default.
type Sources struct {
	Flags map[string][]string               // by setting; a list for each use of the flag
	Env   []string                          // as os.Environ has it
	File  string                            // YAML file; empty: none
	Read  func(file string) ([]byte, error) // nil: os.ReadFile
	// Only names the settings that the verb needs; problems with others are not
	// its business. Empty: all.
	Only []string
	// Command is the broker that is to be started: what follows "--".
	Command []string
}

// problem is one line of a settings error and the settings that it is about; none: all verbs'.
type problem struct {
	fields []string
	text   string
}

// Load reads the settings, validates them and derives the rest. The error joins
// every problem, one line each: name, value, what is wrong and the remedy. An
// environment variable that is empty counts as absent.
func Load(src Sources) (Config, error) {
	c := Default()
	c.origins = map[string]string{}
	c.Command, c.sources = src.Command, &src
	broken := map[string]bool{}
	var problems []problem

	apply := func(s Setting, values []string, from string) {
		if before := c.origins[s.Name]; before != "" {
			c.overridden = append(c.overridden, from+" wins over "+before)
		}
		c.origins[s.Name] = from
		err := s.set(&c, values)
		if broken[s.Name] = err != nil; err != nil {
			problems = append(problems, problem{[]string{s.Name}, fmt.Sprintf("%s %q: %v", from, values[len(values)-1], err)})
		}
	}

	file, err := src.readFile()
	if err != nil {
		return c.Effective(), err
	}
	for i := 0; i+1 < len(file); i += 2 {
		key, value := file[i], file[i+1]
		from := fmt.Sprintf("%s:%d: %s", src.File, key.Line, key.Value)
		s, known := lookup(key.Value)
		values, ok := scalars(value, known && s.Repeatable())
		switch _, twice := c.origins[s.Name]; {
		case !known:
			problems = append(problems, problem{nil, from + ": unknown setting: " + suggest(key.Value, func(s Setting) string { return s.Name })})
		case twice:
			problems = append(problems, problem{nil, from + ": given twice: keep one"})
		case !ok:
			broken[s.Name] = true
			problems = append(problems, problem{[]string{s.Name}, fmt.Sprintf("%s: not a value: write '%s: %s'", from, s.Name, s.example())})
		default:
			apply(s, values, from)
		}
	}
	env := map[string]string{}
	for _, v := range src.Env {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	for _, s := range settings {
		if v := env[s.Env()]; v != "" {
			apply(s, []string{v}, s.Env())
		}
		delete(env, s.Env())
	}
	c.warnings = strangeVariables(env)
	for _, s := range settings {
		if v := src.Flags[s.Name]; len(v) > 0 {
			apply(s, v, "--"+s.Name)
		}
	}

	for _, p := range c.problems() {
		// What could not be parsed has been reported; a rule about it would
		// judge the default instead.
		if !slices.ContainsFunc(p.fields, func(f string) bool { return broken[f] }) {
			problems = append(problems, p)
		}
	}
	return c.Effective(), join(problems, src.Only)
}

// readFile reads the settings file: one YAML mapping, of which it returns keys and values in
// turn.
func (src Sources) readFile() ([]*yaml.Node, error) {
	if src.File == "" {
		return nil, nil
	}
	read := src.Read
	if read == nil {
		read = os.ReadFile
	}
	raw, err := read(src.File)
	if err != nil {
		return nil, fmt.Errorf("--config %q: cannot be read: %s: give the path of a YAML file", src.File, Cause(err))
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err = dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil {
		if err = dec.Decode(new(yaml.Node)); err == nil {
			return nil, fmt.Errorf("%s: more than one YAML document: keep one", src.File)
		}
	}
	if !errors.Is(err, io.EOF) {
		text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " ")
		if tab := indentedByTab.FindIndex(raw); tab != nil && tabFlaw.MatchString(text) { // the parser names a line before it, or none
			text = fmt.Sprintf("line %d: begins with a tab", 1+bytes.Count(raw[:tab[0]], []byte("\n")))
		}
		return nil, fmt.Errorf("%s: not YAML: %s: write one 'name: value' a line, without indentation", src.File, text)
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode && root.Tag != "!!null" {
		return nil, fmt.Errorf("%s:%d: not a mapping: write one 'name: value' a line", src.File, root.Line)
	}
	return root.Content, nil
}

var tabFlaw = regexp.MustCompile(`\btab\b|cannot start any token`)

var indentedByTab = regexp.MustCompile(`(?m)^ *\t`)

// scalars flattens a value. null is none: the key must say something.
func scalars(n *yaml.Node, list bool) (values []string, ok bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.SequenceNode || !list {
		n = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{n}}
	}
	var items []*string
	if n.Decode(&items) != nil || slices.Contains(items, nil) {
		return nil, false
	}
	for _, item := range items {
		values = append(values, *item)
	}
	return values, len(values) > 0
}

// suggest is the next step for who wrote a setting that is none.
func suggest(name string, written func(Setting) string) string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	s, ok := lookup(brokerapi.Nearest(strings.ReplaceAll(strings.ToLower(name), "_", "-"), names))
	if !ok {
		return "see 'holdfast run --help' for all settings"
	}
	return "did you mean " + written(s) + "?"
}

// serviceVariable is what Kubernetes puts into each pod beside a Service called holdfast.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT.*)$|_PORT(_[0-9]+_(TCP|UDP|SCTP).*)?$`)

// strangeVariables warns of variables that look like settings and are none. Their values
// may be secrets and are not shown.
func strangeVariables(env map[string]string) (warnings []string) {
	for name := range env {
		short, ours := strings.CutPrefix(name, "HOLDFAST_")
		if ours && short != "CONFIG" && short != "CHILD" && !strings.HasPrefix(short, "LAB_") && !serviceVariable.MatchString(name) { // CHILD marks a child of ours
			warnings = append(warnings, name+": no such setting, so this variable does nothing: "+suggest(short, Setting.Env))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// Again loads from the same sources, and judges every setting.
func (c Config) Again() (Config, error) {
	if c.sources == nil {
		return c, errors.New("these settings did not come from flags, the environment or a file: they cannot be read anew")
	}
	src := *c.sources
	src.Only = nil
	return Load(src)
}

// join makes one error of the problems that concern only.
func join(problems []problem, only []string) error {
	var errs []error
	for _, p := range problems {
		foreign := func(f string) bool { return !slices.Contains(only, f) }
		if len(only) > 0 && len(p.fields) > 0 && slices.ContainsFunc(p.fields, foreign) {
			continue
		}
		errs = append(errs, errors.New(p.text))
	}
	return errors.Join(errs...)
}

// Cause is the cause of a file error without the path, which the message has.
func Cause(err error) string {
	if path, of := errors.AsType[*fs.PathError](err); of {
		return path.Err.Error()
	}
	return err.Error()
}
