package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"holdfast/agent"
)

// verb is one command. Its help text and the completion scripts are made from it.
type verb struct {
	name  string
	args  string // positional arguments as shown; empty: none are taken
	short string // one line in the list of verbs
	long  string // first paragraph of its help text
	flags options
	// starts says that a command may follow "--"; do gets it as its arguments.
	starts bool
	do     func(ctx context.Context, v *verb, io streams, args []string) error
}

// streams is where a verb prints.
type streams struct{ out, err io.Writer }

func verbs() []*verb {
	return []*verb{
		runVerb(), statusVerb(), fleetVerb(), topicsVerb(), activateVerb(), drainVerb(), leaveVerb(), confirmVerb(), pauseVerb(), resumeVerb(), reloadVerb(),
		eventsVerb(), explainVerb(), checkVerb(), forgetVerb(), gateVerb(), healthcheckVerb(), installVerb(), completionVerb(),
	}
}

func newApp(stdout, stderr io.Writer) *cli.App {
	all := verbs()
	names := make([]string, 0, len(all))
	app := &cli.App{
		Name:                  "holdfast",
		Version:               versionText(),
		HideHelpCommand:       true,
		Writer:                stdout,
		ErrWriter:             stderr,
		CustomAppHelpTemplate: appHelp(all),
		ExitErrHandler:        func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return flagError("", options{{name: "help"}, {name: "version"}}, err)
		},
	}
	for _, v := range all {
		names = append(names, v.name)
		app.Commands = append(app.Commands, v.command(streams{stdout, stderr}))
	}
	app.Action = func(c *cli.Context) error {
		if c.NArg() == 0 {
			return usage("no verb given: see 'holdfast --help'")
		}
		name := c.Args().First()
		if near := agent.Nearest(name, names); near != "" {
			return usage("unknown verb %q: did you mean %s?", name, near)
		}
		return usage("unknown verb %q: see 'holdfast --help'", name)
	}
	return app
}

func (v *verb) command(io streams) *cli.Command {
	cmd := &cli.Command{
		Name:               v.name,
		Usage:              v.short,
		CustomHelpTemplate: verbHelp(v),
		HideHelpCommand:    true,
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return flagError(v.name, v.flags, err)
		},
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if v.starts {
				if err := v.checkCommand(args, c.Lineage()[1].Args().Slice()); err != nil {
					return err
				}
				return v.do(c.Context, v, io, args)
			}
			for i, a := range args {
				if strings.HasPrefix(a, "-") && v.args != "" {
					return usage("%s: %s after an argument: write 'holdfast %s %s %s'", v.name, a, v.name,
						strings.Join(args[i:], " "), strings.Join(args[:i], " "))
				}
			}
			if v.args == "" && len(args) > 0 {
				return usage("%s: unexpected argument %q: it takes flags only, see 'holdfast %s --help'", v.name, args[0], v.name)
			}
			return v.do(c.Context, v, io, args)
		},
	}
	for _, o := range v.flags {
		cmd.Flags = append(cmd.Flags, o)
	}
	return cmd
}

// checkCommand allows arguments only after "--", which the flag package takes away;
// raw has it still.
func (v *verb) checkCommand(args, raw []string) error {
	dashes := len(raw) - len(args) - 1
	after := dashes >= 0 && raw[dashes] == "--"
	switch {
	case after && len(args) == 0:
		return usage("%s: no command after --: write 'holdfast %s … -- CMD ARG…', or leave the dashes out", v.name, v.name)
	case !after && len(args) > 0:
		return usage("%s: unexpected argument %q: to start the broker, write -- before its command; see 'holdfast %s --help'", v.name, args[0], v.name)
	}
	return nil
}

// oneArg is the verb's only argument.
func (v *verb) oneArg(args []string) (string, error) {
	if len(args) == 0 {
		return "", usage("%s: no %s given: write 'holdfast %s %s'", v.name, v.args, v.name, v.args)
	}
	if len(args) > 1 {
		return "", usage("%s: unexpected argument %q: it takes one %s", v.name, args[1], v.args)
	}
	return args[0], nil
}

func outputOption(forms ...string) *option {
	return &option{name: "output", short: "o", arg: strings.Join(forms, "|"), help: "form of the output", def: forms[0]}
}

func (v *verb) wantsJSON() (bool, error) {
	o := v.flags.get("output")
	form, err := o.oneOf(strings.Split(o.arg, "|")...)
	return form == "json", err
}

var socketSettings = []string{"control-socket", "state-dir"}

// client is the sidecar that the flags, the environment or the file point to.
func (v *verb) client() (*agent.Client, error) {
	client, _, err := v.sidecar()
	return client, err
}

// sidecar is client with the settings that it was found by.
func (v *verb) sidecar() (*agent.Client, agent.Config, error) {
	c, err := v.flags.load(socketSettings...)
	if err != nil {
		return nil, c, err
	}
	return agent.NewClient(c.ControlSocket, c.StateDir), c, nil
}

// askTimeout bounds a question that the sidecar answers from memory.
const askTimeout = 10 * time.Second

// painterFor colours only what a person looks at; see no-color.org.
func painterFor(w io.Writer) painter {
	f, ok := w.(*os.File)
	return painter(ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd())))
}

func printJSON(w io.Writer, raw []byte) error {
	if _, err := fmt.Fprintf(w, "%s\n", strings.TrimSpace(string(raw))); err != nil {
		return fmt.Errorf("print answer: %w", err)
	}
	return nil
}
