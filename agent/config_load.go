package agent

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Sources is where settings come from. A flag wins over the environment, that
// over the file, and that over the default.
type Sources struct {
	Flags map[string][]string              // by setting; a list for each use of the flag
	Env   func(name string) (string, bool) // nil: no environment; os.LookupEnv otherwise
	// Environ lists the environment as os.Environ does, to find names that are none; nil: not
	// looked at.
	Environ func() []string
	File    string                            // YAML file; empty: none
	Read    func(file string) ([]byte, error) // nil: os.ReadFile
	// Only names the settings that the verb needs; problems with others are not
	// its business. Empty: all.
	Only []string
	// Command is the broker that is to be started: what follows "--".
	Command []string
}

// origin says where a value came from, as the start of an error message.
type origin struct{ label string }

// problem is one line of a settings error and the settings that it is about.
type problem struct {
	fields []string
	text   string
}

// Load reads the settings, validates them and derives the rest. The error joins
// every problem, one line each: name, value, what is wrong and the remedy. An
// environment variable that is empty counts as absent.
func Load(src Sources) (Config, error) {
	c := Default()
	c.origins = map[string]origin{}
	c.Command, c.sources = src.Command, &src
	broken := map[string]bool{}
	var problems []problem

	apply := func(s Setting, values []string, from origin) {
		c.origins[s.Name] = from
		if err := s.set(&c, values); err != nil {
			broken[s.Name] = true
			problems = append(problems, problem{[]string{s.Name},
				fmt.Sprintf("%s %q: %v", from.label, values[len(values)-1], err)})
		} else {
			delete(broken, s.Name)
		}
	}

	if src.File != "" {
		read := src.Read
		if read == nil {
			read = os.ReadFile
		}
		entries, found, ok := readFile(src.File, read)
		if !ok {
			return c.Effective(), join(found, src.Only)
		}
		problems = append(problems, found...)
		for _, p := range found {
			for _, f := range p.fields {
				broken[f] = true
			}
		}
		for _, e := range entries {
			apply(e.setting, e.values, e.from)
		}
	}
	for _, s := range settings {
		if src.Env == nil {
			break
		}
		if v, ok := src.Env(s.Env()); ok && v != "" {
			apply(s, []string{v}, origin{s.Env()})
		}
	}
	if src.Environ != nil {
		c.warnings = strangeVariables(src.Environ())
	}
	for _, s := range settings {
		if v := src.Flags[s.Name]; len(v) > 0 {
			apply(s, v, origin{"--" + s.Name})
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

// serviceVariable is what Kubernetes puts into each pod beside a Service called holdfast.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT.*)$|_PORT(_[0-9]+_(TCP|UDP|SCTP).*)?$`)

// strangeVariables warns of variables that look like settings and are none. Their values
// may be secrets and are not shown.
func strangeVariables(environ []string) (warnings []string) {
	known := []string{"HOLDFAST_CONFIG", "HOLDFAST_CHILD"} // the latter marks a child of ours
	for _, s := range settings {
		known = append(known, s.Env())
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "HOLDFAST_") || strings.HasPrefix(name, "HOLDFAST_LAB_") || slices.Contains(known, name) || serviceVariable.MatchString(name) {
			continue
		}
		next := "see 'holdfast run --help' for all settings"
		if near := Nearest(name, known); near != "" {
			next = "did you mean " + near + "?"
		}
		warnings = append(warnings, name+": no such setting, so this variable does nothing: "+next)
	}
	slices.Sort(warnings)
	return warnings
}

// again loads from the same sources, and judges every setting.
func (c Config) again() (Config, error) {
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
