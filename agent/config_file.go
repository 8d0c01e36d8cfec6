package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entry is one key of the settings file.
type entry struct {
	setting Setting
	values  []string
	from    origin
}

// readFile reads a settings file: one YAML mapping, its keys the names of the
// settings, its values scalars or lists of scalars. Everything else is a problem,
// and concerns every verb. ok is false when the file as a whole cannot be used.
func readFile(name string, read func(string) ([]byte, error)) (_ []entry, _ []problem, ok bool) {
	whole := func(format string, args ...any) ([]entry, []problem, bool) {
		return nil, []problem{{nil, fmt.Sprintf(format, args...)}}, false
	}
	raw, err := read(name)
	if err != nil {
		return whole("--config %q: cannot be read: %s: give the path of a YAML file", name, reason(err))
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil, true
	} else if err != nil {
		line, what := yamlError(err)
		return whole("%s%s: not YAML: %s: write one 'name: value' a line", name, line, what)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return whole("%s: more than one YAML document: keep one", name)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil, true
	}
	if root.Kind != yaml.MappingNode {
		return whole("%s:%d: not a mapping: write one 'name: value' a line", name, root.Line)
	}

	var entries []entry
	var problems []problem
	first := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		at := fmt.Sprintf("%s:%d: %s", name, key.Line, key.Value)
		s, ok := lookup(key.Value)
		if !ok {
			problems = append(problems, problem{nil, at + ": unknown setting: " + suggestSetting(key.Value)})
			continue
		}
		if line := first[s.Name]; line != 0 {
			problems = append(problems, problem{nil,
				fmt.Sprintf("%s: given twice, first on line %d: keep one", at, line)})
			continue
		}
		first[s.Name] = key.Line
		values, ok := scalars(value, s.Repeatable())
		if !ok {
			want := "one value"
			if s.Repeatable() {
				want = "one value or a list of values"
			}
			problems = append(problems, problem{[]string{s.Name}, at + ": not " + want + ": write '" + s.Name + ": " + example(s) + "'"})
			continue
		}
		entries = append(entries, entry{s, values, origin{at}})
	}
	return entries, problems, true
}

func suggestSetting(name string) string {
	if near := Nearest(name, settingNames()); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "see 'holdfast run --help' for all settings"
}

func settingNames() []string {
	names := make([]string, 0, len(settings))
	for _, s := range settings {
		names = append(names, s.Name)
	}
	return names
}

func example(s Setting) string {
	if s.derived == "" && s.Default() != "" {
		return s.Default()
	}
	if s.Arg == "DURATION" {
		return s.exampleDuration()
	}
	return s.Arg
}

// scalars flattens a value node. null is no value: the key must say something.
func scalars(n *yaml.Node, list bool) ([]string, bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return []string{n.Value}, true
	case n.Kind == yaml.SequenceNode && list && len(n.Content) > 0:
		var values []string
		for _, item := range n.Content {
			v, ok := scalars(item, false)
			if !ok {
				return nil, false
			}
			values = append(values, v...)
		}
		return values, true
	}
	return nil, false
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// yamlError takes the parser's own message apart: ":3" and what is wrong.
func yamlError(err error) (line, what string) {
	m := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if m[1] != "" {
		line = ":" + m[1]
	}
	return line, m[2]
}
