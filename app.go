package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
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
		Version:               versionText(),
		HideHelpCommand:       true,
		EnableBashCompletion:  true,
		Writer:                out,
		ErrWriter:             stderr,
		CustomAppHelpTemplate: appHelp,
		ExitErrHandler:        func(*cli.Context, error) {},
		OnUsageError:          usageError,
		Action:                noVerb,
		Commands: []*cli.Command{
			runVerb(), statusVerb(), fleetVerb(), topicsVerb(), activateVerb(), drainVerb(), leaveVerb(), confirmVerb(), pauseVerb(), resumeVerb(),
			reloadVerb(), eventsVerb(), explainVerb(), checkVerb(), forgetVerb(), gateVerb(), healthcheckVerb(), installVerb(), completionVerb(),
		},
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
	d := f.(cli.DocGenerationFlag)
	arg, text := placeholder(d)
	names := "--" + d.Names()[0]
	if len(d.Names()) > 1 {
		names = "-" + d.Names()[1] + ", " + names
	}
	if def := d.GetDefaultText(); def == "required" {
		text += " (required)"
	} else if def != "" && def != "false" {
		text += " (default:\x00" + strings.ReplaceAll(def, " ", "\x00") + ")" // not broken
	}
	const column = 34
	left := fmt.Sprintf("  %-31s ", strings.TrimSpace(names+" "+arg))
	margin := "\n" + strings.Repeat(" ", column)
	if len([]rune(left)) > column {
		left = strings.TrimRight(left, " ") + margin
	}
	return left + strings.ReplaceAll(fold(text, 100-column, margin), "\x00", " ")
}

// placeholder is the value's, which stands in front of the usage, and what follows.
func placeholder(f cli.DocGenerationFlag) (arg, text string) {
	if arg, text, ok := strings.Cut(f.GetUsage(), "` "); ok {
		return arg[1:], text
	}
	return "", f.GetUsage()
}

func noVerb(c *cli.Context) error {
	if c.NArg() == 0 {
		return usage("no verb given: see 'holdfast --help'")
	}
	var names []string
	for _, v := range c.App.Commands {
		names = append(names, v.Name)
	}
	name := c.Args().First()
	if near := agent.Nearest(name, names); near != "" {
		return usage("unknown verb %q: did you mean %s?", name, near)
	}
	return usage("unknown verb %q: see 'holdfast --help'", name)
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

var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -+(.*)$`)
	wrongValue  = regexp.MustCompile(`^(?:flag needs an argument|invalid (?:boolean )?value (".*") for(?: flag)?):? -+([^:]*)`)
)

// usageError turns the flag package's words into ours.
func usageError(c *cli.Context, err error, ofVerb bool) error {
	verb, see := "", "see 'holdfast --help'; flags of a verb stand after it"
	if ofVerb {
		verb, see = c.Command.Name+": ", fmt.Sprintf("see 'holdfast %s --help'", c.Command.Name)
	}
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var names []string
		for _, f := range c.Command.Flags {
			names = append(names, f.Names()...)
		}
		if near := agent.Nearest(m[1], names); near != "" {
			see = "did you mean --" + near + "?"
		}
		return usage("%sunknown flag --%s: %s", verb, m[1], see)
	}
	m := wrongValue.FindStringSubmatch(err.Error())
	i := slices.IndexFunc(c.Command.Flags, func(f cli.Flag) bool { return m != nil && slices.Contains(f.Names(), m[2]) })
	if i < 0 {
		return usage("%s%w: %s", verb, err, see)
	}
	f := c.Command.Flags[i].(cli.DocGenerationFlag)
	name := f.Names()[0]
	if m[1] == "" {
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
	return usage("--%s %s: %s", name, m[1], remedy)
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

// configFlag names the file of settings.
func configFlag(help, group string) cli.Flag {
	return &cli.StringFlag{Name: "config", Usage: "`FILE` YAML file with " + help, Category: group, EnvVars: []string{"HOLDFAST_CONFIG"}, TakesFile: true}
}

// allSettings are flags for the settings of the sidecar, and for their file, in groups. Where
// shown names some, the others are taken and not in the help.
func allSettings(shown ...string) []cli.Flag {
	flags := []cli.Flag{configFlag("settings, by the names below without the dashes", "File")}
	for _, s := range agent.Settings() {
		flags = append(flags, settingFlag(s, strings.ToUpper(s.Group[:1])+s.Group[1:], len(shown) > 0 && !slices.Contains(shown, s.Name)))
	}
	return flags
}

// someSettings are flags for those alone, and for the file, behind others.
func someSettings(names []string, flags ...cli.Flag) []cli.Flag {
	flags = append(flags, configFlag("the settings of the sidecar", ""))
	for _, s := range agent.Settings() {
		if slices.Contains(names, s.Name) {
			flags = append(flags, settingFlag(s, "", false))
		}
	}
	return flags
}

// settingFlag takes the words of a setting: agent.Load parses them, with those of the
// environment and the file, and names each that is wrong.
func settingFlag(s agent.Setting, group string, hidden bool) cli.Flag {
	help := "`" + s.Arg + "` " + s.Help
	switch {
	case s.Arg == "":
		return &cli.BoolFlag{Name: s.Name, Usage: s.Help, Category: group, Hidden: hidden, DefaultText: s.Default()}
	case s.Repeatable():
		return &cli.StringSliceFlag{Name: s.Name, Usage: help, Category: group, Hidden: hidden, DefaultText: s.Default()}
	}
	return &cli.StringFlag{Name: s.Name, Usage: help, Category: group, Hidden: hidden, DefaultText: s.Default(), TakesFile: s.Arg == "FILE" || s.Arg == "DIR"}
}

// load reads the settings from the flags, the environment and the file. only names those
// whose problems matter; none: all.
func load(c *cli.Context, only ...string) (agent.Config, error) {
	src := agent.Sources{Flags: map[string][]string{}, Env: os.Environ(), File: c.String("config"), Only: only}
	if len(only) == 0 {
		src.Command = c.Args().Slice()
	}
	for _, s := range agent.Settings() {
		switch {
		case !c.IsSet(s.Name):
		case s.Arg == "":
			src.Flags[s.Name] = []string{strconv.FormatBool(c.Bool(s.Name))}
		case s.Repeatable():
			src.Flags[s.Name] = c.StringSlice(s.Name)
		default:
			src.Flags[s.Name] = []string{c.String(s.Name)}
		}
	}
	settings, err := agent.Load(src)
	if err != nil {
		return settings, &agent.ExitError{Code: agent.ExitUsage, Err: err}
	}
	return settings, nil
}

var socketSettings = []string{"control-socket", "state-dir"}

// askTimeout bounds a question that the sidecar answers from memory. It is added to --timeout
// where the verb has one.
const askTimeout = 10 * time.Second

// asking makes a verb that talks to the sidecar which the flags, the environment or the file
// point to.
func asking(name string, do func(*cli.Context, *agent.Client, agent.Config) error, flags ...cli.Flag) *cli.Command {
	return verb(name, func(c *cli.Context) error {
		settings, err := load(c, socketSettings...)
		if err != nil {
			return err
		}
		if !c.Bool("follow") {
			ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout")+askTimeout)
			defer cancel()
			c.Context = ctx
		}
		return do(c, agent.NewClient(settings.ControlSocket, settings.StateDir), settings)
	}, someSettings(socketSettings, flags...)...)
}

func out(c *cli.Context) *output { return c.App.Writer.(*output) }

// answer prints the JSON as it is, or what shows it to people.
func answer(c *cli.Context, raw []byte, show func(*output)) error {
	if c.String("output") == "json" {
		fmt.Fprintln(out(c), strings.TrimSpace(string(raw)))
	} else {
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
		return strings.Trim(or(info.Main.Version, "devel"), "()")
	}
	return or(buildVersion, "unknown")
}

func versionText() string { return version() + " (" + runtime.Version() + ")" }
