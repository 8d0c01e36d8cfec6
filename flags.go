package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

// option is one flag of a verb. It keeps the words that were given; who needs
// them parses them, so that every error message is ours.
type option struct {
	name, short string
	arg         string // placeholder of the value; empty: a switch
	help        string
	def         string // default as shown
	group       string // heading in the help text
	setting     bool   // one of agent.Settings
	hidden      bool   // accepted, and not in the help text
	values      []string
}

var _ cli.Flag = (*option)(nil)

// given is an option as the flag package fills it.
type given option

var _ flag.Value = (*given)(nil)

// Apply registers the option with the flag package, under each of its names.
func (o *option) Apply(set *flag.FlagSet) error {
	for _, name := range o.Names() {
		set.Var((*given)(o), name, o.help)
	}
	return nil
}

// Names are the long and, if there is one, the short name.
func (o *option) Names() []string {
	if o.short != "" {
		return []string{o.name, o.short}
	}
	return []string{o.name}
}

// IsSet reports whether the option was given.
func (o *option) IsSet() bool { return len(o.values) > 0 }

// String is how the option is written.
func (o *option) String() string {
	s := "--" + o.name
	if o.short != "" {
		s = "-" + o.short + ", " + s
	}
	if o.arg != "" {
		s += " " + o.arg
	}
	return s
}

// Set keeps a value. After parsing, the cli package sets what was given by the
// short name once more by the long one.
func (g *given) Set(v string) error { g.values = append(g.values, v); return nil }

// String is the last value given. The flag package asks zero values too.
func (g *given) String() string {
	if g == nil || len(g.values) == 0 {
		return ""
	}
	return g.values[len(g.values)-1]
}

// IsBoolFlag tells the flag package that no value need follow.
func (g *given) IsBoolFlag() bool { return g.arg == "" }

// text is the last value given, or the default.
func (o *option) text() string {
	if len(o.values) > 0 {
		return o.values[len(o.values)-1]
	}
	return o.def
}

func (o *option) on() (bool, error) {
	if !o.IsSet() {
		return false, nil
	}
	v, err := strconv.ParseBool(o.text())
	if err != nil {
		return false, usage("--%s %q: not a switch: write true or false", o.name, o.text())
	}
	return v, nil
}

func (o *option) duration() (time.Duration, error) {
	v, err := time.ParseDuration(o.text())
	if err != nil {
		return 0, usage("--%s %q: not a duration: write a number with a unit, such as %s", o.name, o.text(), o.def)
	}
	if v < 0 {
		return 0, usage("--%s %s: negative: write 0s or more", o.name, o.text())
	}
	return v, nil
}

func (o *option) number() (int64, error) {
	v, err := strconv.ParseInt(o.text(), 10, 64)
	if err != nil || v < 0 {
		return 0, usage("--%s %q: not a number: write digits only", o.name, o.text())
	}
	return v, nil
}

func (o *option) oneOf(known ...string) (string, error) {
	if v := o.text(); slices.Contains(known, v) {
		return v, nil
	}
	return "", usage("--%s %q: unknown: write one of %s", o.name, o.text(), strings.Join(known, ", "))
}

// options are the flags of one verb.
type options []*option

func (opts options) get(name string) *option {
	for _, o := range opts {
		if o.name == name {
			return o
		}
	}
	panic("no option " + name)
}

func (opts options) names() []string {
	var names []string
	for _, o := range opts {
		names = append(names, o.name)
	}
	return names
}

// settingOptions are flags for settings of the sidecar, and --config; no names: all.
func settingOptions(names ...string) options {
	all := options{{
		name: "config", arg: "FILE", group: "file",
		help: "YAML file with settings, by the names below without the dashes",
	}}
	for _, s := range agent.Settings() {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		o := &option{name: s.Name, arg: s.Arg, help: s.Help, def: s.Default(), group: s.Group, setting: true}
		if len(names) > 0 {
			o.group = ""
		}
		all = append(all, o)
	}
	if len(names) > 0 {
		all[0].group, all[0].help = "", "YAML file with the settings of the sidecar"
	}
	return all
}

// load reads the settings from the flags, the environment and the file. only
// names the settings whose problems matter; none: all of them.
func (opts options) load(only ...string) (agent.Config, error) {
	return opts.loadFor(nil, only...)
}

// loadFor is load for a broker that is to be started with this command.
func (opts options) loadFor(command []string, only ...string) (agent.Config, error) {
	src := agent.Sources{Flags: map[string][]string{}, Env: os.Environ(), Only: only, Command: command}
	for _, o := range opts {
		if o.setting && o.IsSet() {
			src.Flags[o.name] = o.values
		}
	}
	if src.File = opts.get("config").text(); src.File == "" {
		src.File = os.Getenv("HOLDFAST_CONFIG")
	}
	c, err := agent.Load(src)
	if err != nil {
		return c, &agent.ExitError{Code: agent.ExitUsage, Err: err}
	}
	return c, nil
}

// flagError turns the flag package's words into ours.
func flagError(verb string, known options, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok {
		name = strings.TrimLeft(name, "-")
		next := fmt.Sprintf("see 'holdfast %s --help'", verb)
		if verb == "" {
			next = "see 'holdfast --help'; flags of a verb stand after it"
		}
		if near := agent.Nearest(name, known.names()); near != "" {
			next = "did you mean --" + near + "?"
		}
		return usage("%sunknown flag --%s: %s", prefix(verb), name, next)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: "); ok {
		name = strings.TrimLeft(name, "-")
		for _, o := range known {
			if slices.Contains(o.Names(), name) {
				return usage("%s--%s: no value given: write --%s %s", prefix(verb), o.name, o.name, o.arg)
			}
		}
		return usage("%s--%s: no value given", prefix(verb), name)
	}
	return usage("%s%s: see 'holdfast %s --help'", prefix(verb), text, verb)
}

func prefix(verb string) string {
	if verb == "" {
		return ""
	}
	return verb + ": "
}
