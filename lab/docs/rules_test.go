package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/recovery"
)

// rules is how many lab/mutate/mutations.md has: none is forgotten.
const rules = 385

func TestEachRuleIsNoticedByWhatThereIs(t *testing.T) {
	line, quoted := regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`), regexp.MustCompile("^(row|hold|departure|guard|snippet)? ?`([^`]+)`$")
	seen := map[string]bool{}
	for _, section := range strings.Split(read(t, "lab/mutate/mutations.md"), "\n## ")[1:] {
		room, table, _ := strings.Cut(section, "\n")
		tests := testsIn(t, room)
		for _, row := range line.FindAllStringSubmatch(table, -1)[1:] { // the first is the head
			rule, by := row[2], row[3]
			if seen[rule] {
				t.Errorf("%s: %q is there twice", room, rule)
			}
			seen[rule] = true
			if room == "gone" {
				continue
			}
			m := quoted.FindStringSubmatch(by)
			if m == nil {
				t.Fatalf("%s: %q: %s is no name of anything", room, rule, by)
			}
			if kind, name := m[1], m[2]; !exists(t, tests, kind, name) {
				t.Errorf("%s: %q: there is no %s %s any more: name what notices the breakage now, or say below gone why nothing has to", room, rule, kind, name)
			}
		}
	}
	if len(seen) != rules {
		t.Errorf("%d rules, want %d", len(seen), rules)
	}
}

func exists(t *testing.T, tests, kind, name string) bool {
	t.Helper()
	switch kind {
	case "row":
		return slices.ContainsFunc(recovery.Table, func(r recovery.Row) bool { return string(r.Name) == name })
	case "departure":
		return slices.ContainsFunc(recovery.Departures, func(e recovery.Ending) bool { return string(e.Cause) == name })
	case "hold":
		return strings.Contains(read(t, "recovery/holds.go"), "\t{\""+name+"\", ")
	case "snippet":
		return strings.Contains(read(t, "agent/simulation/mutation_test.go"), "\t{\""+name+"\", ")
	case "guard":
		write, guard, _ := strings.Cut(name, "/")
		text := read(t, "cluster/guardtest/writes.go")
		return strings.Contains(text, "name: \""+write+"\"") && strings.Contains(text, ", \""+guard+"\", ")
	}
	return strings.Contains(tests, "\nfunc "+name+"(t *testing.T)")
}

// testsIn is the text of all tests in a room.
func testsIn(t *testing.T, room string) string {
	t.Helper()
	var all strings.Builder
	names, err := fs.Glob(os.DirFS(filepath.Join("..", "..", room)), "*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		all.WriteString(read(t, filepath.Join(room, name)))
	}
	return all.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
