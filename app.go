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

	"holdfast/agent/config"
	"holdfast/agent/control"
	"holdfast/brokerapi"
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

// needs are the settings that a verb has a use for.
type needs struct {
	only   []string      // nil: all
	others bool          // those not named are taken, too, and not looked at
	bound  time.Duration // on what is asked, beside --timeout and --wait; less than 0: none
}

// askTimeout bounds a question that is answered from memory.
const askTimeout = 10 * time.Second

func verbs() []*cli.Command {
	etcd, last := etcdSettings(), len(topicStates)-1
	all, sidecar := &needs{others: true, bound: -1}, &needs{only: []string{"control-socket", "state-dir"}, bound: askTimeout}
	moving := &needs{only: sidecar.only, bound: -1} // as long as a move takes
	reason := textFlag("reason", "TEXT", "why, kept with the mode in etcd", "")
	reason.DefaultText = "operator"
	return []*cli.Command{
		verb("run", all, runSidecar),
		verb("status", sidecar, status, outputFlag("table")),
		verb("fleet", &needs{only: etcd, others: true, bound: askTimeout}, fleet, outputFlag("table")),
		verb("topics", sidecar, topics, outputFlag("table"),
			textFlag("state", "STATE", "only topics in this state: "+strings.Join(topicStates[:last], ", ")+" or "+topicStates[last], "", topicStates...)),
		verb("activate", sidecar, activate, reason),
		verb("drain", moving, drain, reason,
			&cli.BoolFlag{Name: "move", Usage: "move its topics to other brokers first, with their data; it is drained when none is left"},
			textFlag("to", "BROKER", "with --move: who takes all topics; without it those with the fewest", ""),
			durationFlag("deadline", 24*time.Hour, time.Second, "with --move: after it no move begins, and what is not handed over is called off"),
			&cli.BoolFlag{Name: "leave-unmoved", Usage: "with --move: although topics must stay, which go on being served here"},
			&cli.BoolFlag{Name: "dry-run", Usage: "with --move: say what would be done, and do nothing"},
			durationFlag("timeout", 30*time.Second, 0, "how long to wait until nothing is served; the mode stays drained in any case")),
		verb("leave", sidecar, leave,
			durationFlag("timeout", 30*time.Second, 0, "how long to wait until nothing is served and the registration is given up; after it the broker stays"),
			&cli.BoolFlag{Name: "wait", Usage: "wait, for the timeout at most, until the broker can leave: attached, active and up"},
			&cli.BoolFlag{Name: "with-sidecar", Usage: "the sidecar is stopped next: if its broker was not, the sidecar's next start takes it back at once"}),
		verb("unload", moving, unload, outputFlag("text"),
			textFlag("reason", "TEXT", "why, kept with the move in etcd", "operator"),
			textFlag("to", "BROKER", "who takes the topic; without it the active broker with the fewest", ""),
			&cli.BoolFlag{Name: "force", Usage: "although consumers are at work"},
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be done, and do nothing"}),
		verb("moves", moving, movesVerb, outputFlag("table"),
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "until what is under way is over"}),
		verb("confirm", sidecar, confirm),
		verb("pause", sidecar, pause,
			durationFlag("for", 0, time.Second, "how long, from 1s to 24h; then recovery goes on by itself"),
			required(textFlag("owner", "TEXT", "who answers for it, such as a name or a ticket", "")),
			required(textFlag("reason", "TEXT", "why, for those who find the broker paused", ""))),
		verb("resume", sidecar, resume),
		verb("reload", sidecar, reload),
		verb("events", sidecar, events, outputFlag("text"),
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "wait for more, until interrupted"}),
		verb("explain", sidecar, explain, outputFlag("text")),
		verb("check", all, checkAll),
		verb("forget", &needs{only: append(etcd, "driver", "registration"), others: true, bound: time.Minute}, forget,
			&cli.BoolFlag{Name: "dry-run", Usage: "say what would be done, and do nothing"}),
		verb("gate", sidecar, gate,
			durationFlag("wait", 0, time.Millisecond, "how long to wait for a sidecar that says so; less than what the unit has for its start")),
		verb("healthcheck", &needs{only: []string{"probe-listen"}}, healthcheck,
			durationFlag("timeout", 3*time.Second, time.Millisecond, "how long to wait for the answer")),
		verb("install", nil, install),
		verb("completion", nil, completion),
	}
}

// texts says of each verb what it takes, what it does in a few words, and what it does.
//
//go:embed verbs.txt
var texts string

// verb makes one of those in texts. It is done with the settings that it needs; nil: none.
func verb(name string, n *needs, do func(call) error, flags ...cli.Flag) *cli.Command {
	_, text, _ := strings.Cut("\n"+texts, "\n# "+name)
	text, _, _ = strings.Cut(text, "\n# ")
	args, text, _ := strings.Cut(text, "\n")
	short, long, _ := strings.Cut(text, "\n\n")
	live := fold(strings.Join(config.LiveSettings(), ", ")+".", 98, "\n")
	if n != nil {
		flags = append(flags, n.flags()...)
	}
	return &cli.Command{
		Name: name, ArgsUsage: strings.TrimSpace(args), Usage: short, Description: strings.ReplaceAll(strings.TrimSpace(long), "{live}", live),
		Flags: flags, Before: checkArgs, OnUsageError: usageError, CustomHelpTemplate: verbHelp, HideHelpCommand: true,
		Action: func(c *cli.Context) (err error) {
			this := call{invocation: c}
			if n == nil {
				return do(this)
			}
			if this.settings, err = load(c, n.only); err != nil {
				return err
			}
			if n.bound >= 0 && !c.Bool("follow") {
				ctx, cancel := context.WithTimeout(c.Context, n.bound+c.Duration("timeout")+c.Duration("wait"))
				defer cancel()
				c.Context = ctx
			}
			return do(this)
		},
	}
}

// call is one use of a verb.
type call struct {
	*invocation
	settings config.Config
}

// invocation is an alias, so that its Context can be told from it where it is embedded.
type invocation = cli.Context

func (c call) out() *output { return c.App.Writer.(*output) }

func (c call) sidecar() *control.Client {
	return control.NewClient(c.settings.ControlSocket, c.settings.StateDir)
}

// answer prints the JSON as it is, or what shows it to people.
func (c call) answer(raw []byte, err error, show func(*output)) error {
	switch {
	case err != nil:
		return err
	case c.String("output") == "json":
		fmt.Fprintln(c.out(), strings.TrimSpace(string(raw)))
	default:
		show(c.out())
	}
	return nil
}

const appHelp = `holdfast keeps an unmodified message broker attached to its cluster, and keeps
clients away from it when it is not.

Usage: holdfast VERB [FLAG…]

Verbs:
{{range .VisibleCommands}}{{printf "  %s %s" .Name .ArgsUsage | printf "%-24s" }} {{.Usage}}
{{end}}
'holdfast VERB --help' tells more; 'holdfast run --help' lists all settings.
Exit codes: 0 done, 1 failed, 2 usage or settings, 3 refused for safety, 4 drained with topics or
cleanup left.
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
	if near := brokerapi.Nearest(name, names); near != "" {
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

// flagsFirst puts a verb's flags in front of what else stands behind it, since the library reads
// none behind that. What follows -- stays where it is.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) < 3 || args[len(args)-1] == "--generate-bash-completion" {
		return args
	}
	verb := app.Command(args[1])
	if verb == nil || verb.ArgsUsage == "" || verb.ArgsUsage == startsOne {
		return args
	}
	var flags, rest []string
	for i := 2; i < len(args); i++ {
		name := strings.TrimLeft(args[i], "-")
		if args[i] == "--" {
			rest = append(rest, args[i:]...)
			break
		}
		if name == args[i] || name == "" {
			rest = append(rest, args[i])
			continue
		}
		flags = append(flags, args[i])
		at := slices.IndexFunc(verb.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
		if at < 0 || i+1 == len(args) {
			continue
		}
		if _, isSwitch := verb.Flags[at].(*cli.BoolFlag); !isSwitch {
			i++
			flags = append(flags, args[i])
		}
	}
	return slices.Concat(args[:2], flags, rest)
}

// checkArgs holds what stands after the flags against what the verb takes.
func checkArgs(c *cli.Context) error {
	name, takes, args, wrong := c.Command.Name, c.Command.ArgsUsage, c.Args().Slice(), ""
	given := c.Lineage()[1].Args().Slice() // with the dashes, which the flag package takes away
	dashes := given[len(given)-len(args)-1] == "--"
	switch none := takes == "" || takes == startsOne; {
	case takes == startsOne && dashes && len(args) == 0:
		wrong = "no command after --"
	case none && len(args) > 0 && !(takes == startsOne && dashes):
		wrong = fmt.Sprintf("unexpected argument %q", args[0])
	case none, strings.HasPrefix(takes, "[ID"): // the verb tells those apart
		return nil
	case len(args) == 0:
		wrong = "no " + takes + " given"
	case len(args) > 1:
		wrong = fmt.Sprintf("unexpected argument %q", args[1])
	default:
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
	kind := "a switch: write true or false"
	if _, ok := f.(*cli.DurationFlag); ok {
		kind = "a duration: write a number with a unit, such as 30s"
	}
	return usage("--%s %s: not %s", name, value, kind)
}

// textFlag is a flag with a value: one of those that are known, if any are.
func textFlag(name, arg, help, def string, known ...string) *cli.StringFlag {
	f := &cli.StringFlag{Name: name, Usage: "`" + arg + "` " + help, Value: def, DefaultText: def}
	f.Action = func(_ *cli.Context, value string) error {
		if len(known) > 0 && !slices.Contains(known, value) {
			return usage("--%s %q: unknown: write one of %s", name, value, strings.Join(known, ", "))
		}
		return nil
	}
	return f
}

func required(f *cli.StringFlag) cli.Flag {
	f.DefaultText = "required"
	return f
}

// outputFlag takes the form of the output: by default the first.
func outputFlag(form string) cli.Flag {
	f := textFlag("output", form+"|json", "form of the output", form, form, "json")
	f.Aliases = []string{"o"}
	return f
}

// durationFlag takes at least so long. Without a default it is required.
func durationFlag(name string, def, least time.Duration, help string) cli.Flag {
	f := &cli.DurationFlag{Name: name, Usage: "`DURATION` " + help, Value: def, DefaultText: def.String()}
	if def == 0 {
		f.DefaultText = "required"
	}
	f.Action = func(_ *cli.Context, d time.Duration) error {
		if d < least {
			return usage("--%s %s: must be at least %s", name, d, least)
		}
		return nil
	}
	return f
}

// flags take the words of settings, and the file of them: agent.Load parses them, with
// those of the environment and the file, and names each that is wrong.
func (n *needs) flags() []cli.Flag {
	file := &cli.StringFlag{Name: "config", Usage: "`FILE` YAML file with the settings of the sidecar", EnvVars: []string{"HOLDFAST_CONFIG"}, TakesFile: true}
	flags := []cli.Flag{file}
	if n.others {
		file.Usage, file.Category = "`FILE` YAML file with settings, by the names below without the dashes", "File"
	}
	for _, s := range config.Settings() {
		group, help, hidden := "", "`"+s.Arg+"` "+s.Help, n.only != nil && !slices.Contains(n.only, s.Name)
		if n.others {
			group = strings.ToUpper(s.Group[:1]) + s.Group[1:]
		}
		switch {
		case hidden && !n.others:
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
// whose problems matter; nil: all.
func load(c *cli.Context, only []string) (config.Config, error) {
	src := config.Sources{Flags: map[string][]string{}, Env: os.Environ(), File: c.String("config"), Only: only}
	if only == nil {
		src.Command = c.Args().Slice()
	}
	for _, s := range config.Settings() {
		if c.IsSet(s.Name) {
			src.Flags[s.Name] = []string{fmt.Sprint(c.Value(s.Name))}
			if s.Repeatable() {
				src.Flags[s.Name] = c.StringSlice(s.Name)
			}
		}
	}
	settings, err := config.Load(src)
	if err != nil {
		return settings, &control.ExitError{Code: control.ExitUsage, Err: err}
	}
	return settings, nil
}

var (
	//go:embed completion.bash
	bashCompletion string
	//go:embed completion.zsh
	zshCompletion string
)

func completion(c call) (err error) {
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
	fmt.Fprint(c.out(), script)
	return err
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
