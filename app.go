package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"holdfast/agent"
)

func newApp(out *output, stderr io.Writer) *cli.App {
	cli.HelpFlag = &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Hidden: true}
	cli.FlagStringer = flagText
	return &cli.App{
		Name:                  "holdfast",
		Version:               version() + " (" + runtime.Version() + ")",
		HideHelpCommand:       true,
		EnableBashCompletion:  true,
		Writer:                out,
		ErrWriter:             stderr,
		CustomAppHelpTemplate: appHelp,
		ExitErrHandler:        func(*cli.Context, error) {},
		OnUsageError:          usageError,
		Action:                noVerb,
		Commands:              verbs(),
	}
}

func verbs() []*cli.Command {
	socket, etcd := []string{"control-socket", "state-dir"}, etcdSettings()
	table, lines := outputFlag("table", "json"), outputFlag("text", "json")
	reason := textFlag("reason", "TEXT", "why, kept with the mode in etcd", "operator")
	last := len(topicStates) - 1
	state := textFlag("state", "STATE", "only topics in this state: "+strings.Join(topicStates[:last], ", ")+" or "+topicStates[last], "")
	state.Action = oneOf("state", topicStates)
	long := durationFlag("for", "how long, from 1s to 24h; then recovery goes on by itself", 0, time.Second)
	owner := textFlag("owner", "TEXT", "who answers for it, such as a name or a ticket", "")
	why := textFlag("reason", "TEXT", "why, for those who find the broker paused", "")
	wait := durationFlag("wait", "how long to wait for a sidecar that says so; less than what the unit has for its start", 0, time.Millisecond)
	long.DefaultText, owner.DefaultText, why.DefaultText, wait.DefaultText = "required", "required", "required", "required"

	asking := func(name string, do func(asked) error, flags ...cli.Flag) *cli.Command {
		return verb(name, ask(socket, do), append(flags, settingFlags(socket, false)...)...)
	}
	reaching := func(name, without string, bound time.Duration, only []string, do func(reached) error, flag cli.Flag) *cli.Command {
		return verb(name, reach(without, bound, only, do), append([]cli.Flag{flag}, settingFlags(only, true)...)...)
	}
	return []*cli.Command{
		verb("run", runSidecar, settingFlags(nil, true)...),
		asking("status", status, table),
		reaching("fleet", "the brokers of this cluster: ask the broker's own admin tool, or 'holdfast status' beside each broker",
			askTimeout, etcd, fleet, table),
		asking("topics", topics, table, state),
		asking("activate", activate, reason),
		asking("drain", drain, reason,
			durationFlag("timeout", "how long to wait until nothing is served; the mode stays drained in any case", 30*time.Second, 0)),
		asking("leave", leave,
			durationFlag("timeout", "how long to wait until nothing is served and the registration is given up; after it the broker stays", 30*time.Second, 0),
			&cli.BoolFlag{Name: "wait", Usage: "wait, for the timeout at most, until the broker can leave: attached, active and up"},
			&cli.BoolFlag{Name: "with-sidecar", Usage: "the sidecar is stopped next: if its broker was not, the sidecar's next start takes it back at once"}),
		asking("confirm", confirm),
		asking("pause", pause, long, owner, why),
		asking("resume", resume),
		asking("reload", reload),
		asking("events", events, lines,
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for more, until interrupted"},
			&cli.Int64Flag{Name: "since", Usage: "`ID` only events after this one"}),
		asking("explain", explain, lines),
		verb("check", check, settingFlags(nil, true)...),
		reaching("forget", "this broker: nothing to forget", time.Minute, append(etcd, "driver", "registration"), forget,
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be done, and do nothing"}),
		asking("gate", gate, wait),
		verb("healthcheck", healthcheck, append([]cli.Flag{
			durationFlag("timeout", "how long to wait for the answer", 3*time.Second, time.Millisecond)}, settingFlags([]string{"probe-listen"}, false)...)...),
		verb("install", install),
		completionVerb(),
	}
}

// texts says of each verb what it takes, what it does in a few words, and what it does.
//
//go:embed verbs.txt
var texts string

// verb makes one of those in texts.
func verb(name string, action cli.ActionFunc, flags ...cli.Flag) *cli.Command {
	for text := range strings.SplitSeq("\n"+texts, "\n# ") {
		head, text, _ := strings.Cut(text, "\n")
		short, long, _ := strings.Cut(text, "\n\n")
		if called, args, _ := strings.Cut(head, " "); called == name {
			live := fold(strings.Join(agent.LiveSettings(), ", ")+".", 98, "\n")
			return &cli.Command{
				Name: name, ArgsUsage: args, Usage: short, Description: strings.ReplaceAll(strings.TrimSpace(long), "{live}", live),
				Flags: flags, Action: action, Before: checkArgs, OnUsageError: usageError, CustomHelpTemplate: verbHelp, HideHelpCommand: true,
			}
		}
	}
	panic("no text for " + name)
}

const appHelp = `holdfast keeps an unmodified message broker attached to its cluster, and keeps
clients away from it when it is not.

Usage: holdfast VERB [FLAG…]

Verbs:
{{range .VisibleCommands}}{{printf "  %s %s" .Name .ArgsUsage | printf "%-24s" }} {{.Usage}}
{{end}}
'holdfast VERB --help' tells more; 'holdfast run --help' lists all settings.
Exit codes: 0 done, 1 failed, 2 usage or settings, 3 refused for safety.
`

const verbHelp = `Usage: holdfast {{.Name}}{{if .VisibleFlags}} [FLAG…]{{end}}{{with .ArgsUsage}} {{.}}{{end}}

{{.Description}}
{{$group := "none"}}{{range .VisibleFlags}}{{if ne .GetCategory $group}}{{$group = .GetCategory}}
{{or $group "Flags"}}:
{{end}}{{.}}
{{end}}`

// flagText is a flag in the help: its names and placeholder, and what it does.
func flagText(f cli.Flag) string {
	const column = 34
	arg, text := placeholder(f)
	names := "--" + f.Names()[0]
	if len(f.Names()) > 1 {
		names = "-" + f.Names()[1] + ", " + names
	}
	if def := f.(cli.DocGenerationFlag).GetDefaultText(); def == "required" {
		text += " (required)"
	} else if def != "" && def != "false" {
		text += " (default:\x00" + strings.ReplaceAll(def, " ", "\x00") + ")" // not broken
	}
	left, margin := fmt.Sprintf("  %-31s ", strings.TrimSpace(names+" "+arg)), "\n"+strings.Repeat(" ", column)
	if len([]rune(left)) > column {
		left = strings.TrimRight(left, " ") + margin
	}
	return left + strings.ReplaceAll(fold(text, 100-column, margin), "\x00", " ")
}

// placeholder is the value's, which stands in front of the usage, and what follows.
func placeholder(f cli.Flag) (arg, text string) {
	usage := f.(cli.DocGenerationFlag).GetUsage()
	if arg, text, ok := strings.Cut(usage, "` "); ok {
		return arg[1:], text
	}
	return "", usage
}

// meant is the next step for who wrote a name that none of them has.
func meant[T interface{ Names() []string }](name string, of []T, dashes, see string) string {
	var names []string
	for _, one := range of {
		names = append(names, one.Names()...)
	}
	if near := agent.Nearest(name, names); near != "" {
		return "did you mean " + dashes + near + "?"
	}
	return see
}

func noVerb(c *cli.Context) error {
	const see = "see 'holdfast --help'"
	if c.NArg() == 0 {
		return usage("no verb given: " + see)
	}
	return usage("unknown verb %q: %s", c.Args().First(), meant(c.Args().First(), c.App.Commands, "", see))
}

// startsOne is what verbs take that may start one.
const startsOne = "[-- CMD ARG…]"

// checkArgs holds what stands after the flags against what the verb takes.
func checkArgs(c *cli.Context) error {
	name, takes, args := c.Command.Name, c.Command.ArgsUsage, c.Args().Slice()
	wrong, given := "", c.Lineage()[1].Args().Slice() // with the dashes, which the flag package takes away
	switch before := given[:len(given)-len(args)]; {
	case takes == startsOne && before[len(before)-1] == "--":
		if len(args) > 0 {
			return nil
		}
		wrong = "no command after --"
	case takes == startsOne || takes == "":
	case len(args) == 0:
		wrong = "no " + takes + " given"
	default:
		args = args[1:]
	}
	if len(args) > 0 {
		wrong = fmt.Sprintf("unexpected argument %q", args[0])
	}
	if wrong == "" {
		return nil
	}
	return usage("%s: %s: write 'holdfast %s'", name, wrong, strings.TrimSpace(name+" [FLAG…] "+takes))
}

// wrongFlag takes from the flag package's words the value that is wrong, if any, and the flag.
var wrongFlag = regexp.MustCompile(`^(?:flag (?:provided but not defined|needs an argument)|invalid (?:boolean )?value (".*") for(?: flag)?):? -+([^:]*)`)

// usageError turns the flag package's words into ours.
func usageError(c *cli.Context, err error, ofVerb bool) error {
	verb, see := "", "see 'holdfast --help'; flags of a verb stand after it"
	if ofVerb {
		verb, see = c.Command.Name+": ", fmt.Sprintf("see 'holdfast %s --help'", c.Command.Name)
	}
	m := wrongFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return usage("%s%w: %s", verb, err, see)
	}
	value, name := m[1], m[2]
	i := slices.IndexFunc(c.Command.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return usage("%sunknown flag --%s: %s", verb, name, meant(name, c.Command.Flags, "--", see))
	}
	f := c.Command.Flags[i]
	name = f.Names()[0]
	if value == "" {
		arg, _ := placeholder(f)
		return usage("%s--%s: no value given: write --%s %s", verb, name, name, arg)
	}
	remedy := "not a switch: write true or false"
	switch f.(type) {
	case *cli.DurationFlag:
		remedy = "not a duration: write a number with a unit, such as 30s"
	case *cli.Int64Flag:
		remedy = "not a number: write digits only"
	}
	return usage("--%s %s: %s", name, value, remedy)
}

// textFlag is a flag with a text. Its default is shown without quotes.
func textFlag(name, arg, help, def string) *cli.StringFlag {
	return &cli.StringFlag{Name: name, Usage: "`" + arg + "` " + help, Value: def, DefaultText: def}
}

func durationFlag(name, help string, def, least time.Duration) *cli.DurationFlag {
	return &cli.DurationFlag{Name: name, Usage: "`DURATION` " + help, Value: def, Action: func(_ *cli.Context, d time.Duration) error {
		if d < least {
			return usage("--%s %s: must be at least %s", name, d, least)
		}
		return nil
	}}
}

// oneOf checks the value of a flag.
func oneOf(name string, known []string) func(*cli.Context, string) error {
	return func(_ *cli.Context, value string) error {
		if slices.Contains(known, value) {
			return nil
		}
		return usage("--%s %q: unknown: write one of %s", name, value, strings.Join(known, ", "))
	}
}

// outputFlag takes the form of the output: by default the first.
func outputFlag(forms ...string) cli.Flag {
	f := textFlag("output", strings.Join(forms, "|"), "form of the output", forms[0])
	f.Aliases, f.Action = []string{"o"}, oneOf("output", forms)
	return f
}

// settingFlags take the words of settings, and the file of them: agent.Load parses them, with
// those of the environment and the file, and names each that is wrong. Where shown names some,
// the others are not in the help: they are taken all the same, or not at all.
func settingFlags(shown []string, others bool) []cli.Flag {
	file := &cli.StringFlag{Name: "config", Usage: "`FILE` YAML file with the settings of the sidecar", EnvVars: []string{"HOLDFAST_CONFIG"}, TakesFile: true}
	flags := []cli.Flag{file}
	if others {
		file.Usage, file.Category = "`FILE` YAML file with settings, by the names below without the dashes", "File"
	}
	for _, s := range agent.Settings() {
		group, help, hidden := "", "`"+s.Arg+"` "+s.Help, len(shown) > 0 && !slices.Contains(shown, s.Name)
		if others {
			group = strings.ToUpper(s.Group[:1]) + s.Group[1:]
		}
		switch {
		case hidden && !others:
		case s.Arg == "":
			flags = append(flags, &cli.BoolFlag{Name: s.Name, Usage: s.Help, Category: group, Hidden: hidden, DefaultText: s.Default()})
		case s.Repeatable():
			flags = append(flags, &cli.StringSliceFlag{Name: s.Name, Usage: help, Category: group, Hidden: hidden, DefaultText: s.Default()})
		default:
			flags = append(flags, &cli.StringFlag{Name: s.Name, Usage: help, Category: group, Hidden: hidden, DefaultText: s.Default(), TakesFile: s.Arg == "FILE" || s.Arg == "DIR"})
		}
	}
	return flags
}

// load reads the settings from the flags, the environment and the file. only names those
// whose problems matter; none: all.
func load(c *cli.Context, only ...string) (agent.Config, error) {
	src := agent.Sources{Flags: map[string][]string{}, Env: os.Environ(), File: c.String("config"), Only: only}
	if len(only) == 0 {
		src.Command = c.Args().Slice()
	}
	for _, s := range agent.Settings() {
		if c.IsSet(s.Name) {
			src.Flags[s.Name] = []string{fmt.Sprint(c.Value(s.Name))}
			if s.Repeatable() {
				src.Flags[s.Name] = c.StringSlice(s.Name)
			}
		}
	}
	settings, err := agent.Load(src)
	if err != nil {
		return settings, &agent.ExitError{Code: agent.ExitUsage, Err: err}
	}
	return settings, nil
}

// askTimeout bounds a question that is answered from memory. It is added to --timeout
// where the verb has one.
const askTimeout = 10 * time.Second

// call is an alias, so that its Context can be told from it where it is embedded.
type call = cli.Context

// asked is a verb that talks to the sidecar which the flags, the environment or the file
// point to.
type asked struct {
	*call
	*agent.Client
	settings agent.Config
}

func ask(only []string, do func(asked) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		settings, err := load(c, only...)
		if err != nil {
			return err
		}
		if !c.Bool("follow") {
			ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout")+c.Duration("wait")+askTimeout)
			defer cancel()
			c.Context = ctx
		}
		return do(asked{c, agent.NewClient(settings.ControlSocket, settings.StateDir), settings})
	}
}

func out(c *cli.Context) *output { return c.App.Writer.(*output) }

// answer prints the JSON as it is, or what shows it to people.
func answer(c *cli.Context, raw []byte, err error, show func(*output)) error {
	switch {
	case err != nil:
		return err
	case c.String("output") == "json":
		fmt.Fprintln(out(c), strings.TrimSpace(string(raw)))
	default:
		show(out(c))
	}
	return nil
}

var (
	//go:embed completion.bash
	bashCompletion string
	//go:embed completion.zsh
	zshCompletion string
)

func completionVerb() *cli.Command {
	v := verb("completion", func(c *cli.Context) (err error) {
		script := ""
		switch shell := c.Args().First(); shell {
		case "bash":
			script = bashCompletion
		case "zsh":
			script = zshCompletion
		case "fish":
			script, err = c.App.ToFishCompletion()
			script = regexp.MustCompile("`[^`]*` ").ReplaceAllString(script, "") // the placeholders
		default:
			return usage("completion: shell %q: unknown: write one of bash, zsh, fish", shell)
		}
		fmt.Fprint(out(c), script)
		return err
	})
	v.BashComplete = func(c *cli.Context) { fmt.Fprintln(out(c), "bash\nzsh\nfish") }
	return v
}

// buildVersion is set by the linker: -X main.buildVersion=v1.2.3
var buildVersion string

// version is the linker's word, else that of the go command: the module's, or the revision's.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && buildVersion == "" {
		return strings.Trim(cmp.Or(info.Main.Version, "devel"), "()")
	}
	return cmp.Or(buildVersion, "unknown")
}
