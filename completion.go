package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func completionVerb() *verb {
	return &verb{
		name:  "completion",
		args:  "SHELL",
		short: "completion script for bash, zsh or fish",
		long: "Prints a completion script.\n" +
			"  bash: source <(holdfast completion bash)\n" +
			"  zsh:  source <(holdfast completion zsh)\n" +
			"  fish: holdfast completion fish | source",
		do: func(_ context.Context, v *verb, io streams, args []string) error {
			shell, err := v.oneArg(args)
			if err != nil {
				return err
			}
			scripts := map[string]func([]*verb) string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}
			script, ok := scripts[shell]
			if !ok {
				return usage("completion: shell %q: unknown: write one of bash, zsh, fish", shell)
			}
			if _, err := fmt.Fprint(io.out, script(verbs())); err != nil {
				return fmt.Errorf("print script: %w", err)
			}
			return nil
		},
	}
}

// words are what may follow a verb: its flags, or the choices of its argument.
func (v *verb) words() []string {
	var words []string
	if v.args == "SHELL" {
		words = append(words, "bash", "zsh", "fish")
	}
	for _, o := range v.flags {
		words = append(words, "--"+o.name)
	}
	return append(words, "--help")
}

// choices are the values of a flag that has a fixed set of them.
func (o *option) choices() []string {
	switch {
	case o.name == "state":
		return topicStates
	case strings.Contains(o.arg, "|"):
		return strings.Split(o.arg, "|")
	}
	return nil
}

func bashScript(all []*verb) string {
	var b strings.Builder
	b.WriteString("_holdfast() {\n" +
		"    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n" +
		"    COMPREPLY=()\n" +
		"    if [ \"$COMP_CWORD\" -eq 1 ]; then\n")
	fmt.Fprintf(&b, "        words=\"%s --help --version\"\n", strings.Join(verbNames(all), " "))
	b.WriteString("    else\n        case ${COMP_WORDS[1]}:$prev in\n")
	files := map[string]bool{}
	for _, v := range all {
		for _, o := range v.flags {
			for _, name := range flagWords(o) {
				switch {
				case len(o.choices()) > 0:
					fmt.Fprintf(&b, "        %s:%s) words=\"%s\" ;;\n", v.name, name, strings.Join(o.choices(), " "))
				case o.arg == "FILE" || o.arg == "DIR":
					files[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "        *:%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", name)
	}
	for _, v := range all {
		fmt.Fprintf(&b, "        %s:*) words=\"%s\" ;;\n", v.name, strings.Join(v.words(), " "))
	}
	b.WriteString("        esac\n    fi\n" +
		"    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n" +
		"complete -F _holdfast holdfast\n")
	return b.String()
}

func zshScript(all []*verb) string {
	var b strings.Builder
	b.WriteString("#compdef holdfast\n_holdfast() {\n    local -a verbs\n    verbs=(\n")
	for _, v := range all {
		fmt.Fprintf(&b, "        %s\n", singleQuote(v.name+":"+strings.ReplaceAll(v.short, ":", `\:`)))
	}
	b.WriteString("    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n    fi\n" +
		"    case $words[2] in\n")
	for _, v := range all {
		fmt.Fprintf(&b, "    %s)\n        _arguments \\\n", v.name)
		for _, o := range v.flags {
			for _, name := range flagWords(o) {
				fmt.Fprintf(&b, "            %s \\\n", singleQuote(zshFlag(name, o)))
			}
		}
		if v.args == "SHELL" {
			b.WriteString("            '2:shell:(bash zsh fish)' \\\n")
		}
		b.WriteString("            '--help[tell more]'\n        ;;\n")
	}
	b.WriteString("    esac\n}\ncompdef _holdfast holdfast\n")
	return b.String()
}

func zshFlag(name string, o *option) string {
	help := strings.NewReplacer("[", "(", "]", ")", ":", ";").Replace(o.help)
	spec := "*" + name + "[" + help + "]"
	switch {
	case o.arg == "":
	case len(o.choices()) > 0:
		spec += ":" + o.name + ":(" + strings.Join(o.choices(), " ") + ")"
	case o.arg == "FILE":
		spec += ":file:_files"
	case o.arg == "DIR":
		spec += ":directory:_files -/"
	default:
		spec += ":" + o.name + ":"
	}
	return spec
}

func fishScript(all []*verb) string {
	var b strings.Builder
	b.WriteString("complete -c holdfast -f\n")
	for _, v := range all {
		fmt.Fprintf(&b, "complete -c holdfast -n __fish_use_subcommand -a %s -d %s\n", v.name, fishQuote(v.short))
	}
	for _, v := range all {
		seen := " -n '__fish_seen_subcommand_from " + v.name + "'"
		if v.args == "SHELL" {
			fmt.Fprintf(&b, "complete -c holdfast%s -a 'bash zsh fish'\n", seen)
		}
		for _, o := range v.flags {
			line := "complete -c holdfast" + seen + " -l " + o.name
			if o.short != "" {
				line += " -s " + o.short
			}
			switch {
			case o.arg == "":
			case len(o.choices()) > 0:
				line += " -x -a '" + strings.Join(o.choices(), " ") + "'"
			case o.arg == "FILE" || o.arg == "DIR":
				line += " -r -F"
			default:
				line += " -x"
			}
			b.WriteString(line + " -d " + fishQuote(o.help) + "\n")
		}
	}
	return b.String()
}

func verbNames(all []*verb) []string {
	names := make([]string, 0, len(all))
	for _, v := range all {
		names = append(names, v.name)
	}
	return names
}

// flagWords are the ways to write a flag on the command line.
func flagWords(o *option) []string {
	words := []string{"--" + o.name}
	if o.short != "" {
		words = append(words, "-"+o.short)
	}
	return words
}

func singleQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
