package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/agent/config"
)

// arrows says which of our packages each one may import (DESIGN, Rooms). The
// packages of one row know the others only through interfaces of their own.
var arrows = map[string][]string{
	"holdfast":                           {"holdfast/agent", "holdfast/agent/check", "holdfast/agent/config", "holdfast/agent/control", "holdfast/agent/guard", "holdfast/agent/lease", "holdfast/agent/moving", "holdfast/brokerapi", "holdfast/cluster", "holdfast/probes", "holdfast/recovery", "holdfast/recovery/moves"},
	"holdfast/agent":                     {"holdfast/agent/check", "holdfast/agent/config", "holdfast/agent/control", "holdfast/agent/guard", "holdfast/agent/lease", "holdfast/agent/moving", "holdfast/agent/note", "holdfast/agent/process", "holdfast/agent/recognize", "holdfast/agent/registration", "holdfast/agent/web", "holdfast/agent/web/page", "holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/cluster", "holdfast/probes", "holdfast/recovery", "holdfast/recovery/moves", "holdfast/recovery/topics"},
	"holdfast/agent/check":               {"holdfast/agent/config", "holdfast/agent/control", "holdfast/agent/guard", "holdfast/agent/lease", "holdfast/agent/process", "holdfast/agent/recognize", "holdfast/brokerapi", "holdfast/cluster", "holdfast/probes", "holdfast/recovery"},
	"holdfast/agent/config":              {"holdfast/agent/lease", "holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/danube", "holdfast/brokerapi/httpapi", "holdfast/brokerapi/nats", "holdfast/brokerapi/pulsar", "holdfast/cluster"},
	"holdfast/agent/control":             {"holdfast/agent/config", "holdfast/agent/guard", "holdfast/agent/moving", "holdfast/agent/process", "holdfast/cluster", "holdfast/probes", "holdfast/recovery"},
	"holdfast/agent/guard":               {"holdfast/agent/lease", "holdfast/agent/process"},
	"holdfast/agent/lease":               {},
	"holdfast/agent/moving":              {"holdfast/brokerapi", "holdfast/cluster", "holdfast/recovery/moves"},
	"holdfast/agent/web":                 {"holdfast/agent/config", "holdfast/agent/control", "holdfast/agent/web/page", "holdfast/probes"},
	"holdfast/agent/web/page":            {},
	"holdfast/agent/note":                {"holdfast/agent/lease", "holdfast/agent/process"},
	"holdfast/agent/process":             {"holdfast/probes"},
	"holdfast/agent/recognize":           {"holdfast/agent/config", "holdfast/agent/process", "holdfast/brokerapi", "holdfast/probes"},
	"holdfast/agent/registration":        {"holdfast/agent/config", "holdfast/agent/lease", "holdfast/agent/note", "holdfast/brokerapi", "holdfast/cluster", "holdfast/probes", "holdfast/recovery"},
	"holdfast/agent/simulation":          {},
	"holdfast/recovery":                  {},
	"holdfast/recovery/moves":            {},
	"holdfast/recovery/topics":           {"holdfast/recovery"},
	"holdfast/probes":                    {"holdfast/brokerapi/hosts"},
	"holdfast/internal/fakenet":          {},
	"holdfast/internal/raced":            {},
	"holdfast/internal/testseed":         {},
	"holdfast/standstill":                {},
	"holdfast/cluster":                   {"holdfast/brokerapi/access", "holdfast/brokerapi/hosts"}, // leaves: TLS files, addresses
	"holdfast/cluster/memory":            {},
	"holdfast/cluster/guardtest":         {"holdfast/cluster"},
	"holdfast/brokerapi":                 {"holdfast/recovery/moves"}, // a leaf: the journal's words
	"holdfast/brokerapi/access":          {"holdfast/brokerapi/hosts"},
	"holdfast/brokerapi/danube":          {"holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/danube/danubepb", "holdfast/brokerapi/hosts", "holdfast/brokerapi/rest"},
	"holdfast/brokerapi/hosts":           {},
	"holdfast/brokerapi/httpapi":         {"holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/rest", "holdfast/recovery/moves"},
	"holdfast/brokerapi/nats":            {"holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/hosts", "holdfast/brokerapi/rest", "holdfast/recovery/moves"},
	"holdfast/brokerapi/pulsar":          {"holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/rest"},
	"holdfast/brokerapi/rest":            {"holdfast/brokerapi", "holdfast/brokerapi/access", "holdfast/brokerapi/hosts"},
	"holdfast/brokerapi/brokertest":      {"holdfast/brokerapi", "holdfast/recovery/moves", "holdfast/standstill"},
	"holdfast/brokerapi/danube/danubepb": {},
}

// tool runs the go command that runs this test.
func tool(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return out
}

type pkg struct {
	ImportPath, Dir  string
	Imports, GoFiles []string
}

// ours lists the packages of the root module. Tests' own imports are not in it.
func ours(t *testing.T) []pkg {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(tool(t, "list", "-json=ImportPath,Dir,Imports,GoFiles", "./..."))))
	var list []pkg
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range ours(t) {
		allowed, ok := arrows[p.ImportPath]
		if !ok {
			t.Errorf("%s has no row in arrows: say what it may import", p.ImportPath)
		}
		for _, i := range p.Imports {
			if (i == "holdfast" || strings.HasPrefix(i, "holdfast/")) && !slices.Contains(allowed, i) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

func TestOnlyClusterKnowsEtcd(t *testing.T) {
	for _, p := range ours(t) {
		for _, i := range p.Imports {
			knows := []string{"holdfast/cluster", "holdfast/cluster/memory", "holdfast/cluster/guardtest"}
			if strings.HasPrefix(i, "go.etcd.io/") && !slices.Contains(knows, p.ImportPath) {
				t.Errorf("%s imports %s", p.ImportPath, i)
			}
		}
	}
}

func TestTheBinaryHasNothingOfTheLabNoEtcdAndNoTests(t *testing.T) {
	simulated := []string{"holdfast/agent/simulation", "holdfast/cluster/memory"}
	for dep := range strings.Lines(string(tool(t, "list", "-deps", "."))) {
		dep = strings.TrimSpace(dep)
		if dep == "testing" || strings.HasPrefix(dep, "testing/") || strings.HasPrefix(dep, "holdfast/lab") || strings.HasSuffix(dep, "test") && strings.HasPrefix(dep, "holdfast/") || slices.Contains(simulated, dep) || strings.HasPrefix(dep, "go.etcd.io/etcd/server") || strings.HasPrefix(dep, "go.etcd.io/bbolt") || strings.HasPrefix(dep, "go.etcd.io/raft") {
			t.Errorf("the binary contains %s", dep)
		}
	}
}

// source is one parsed file: what its imports are called, and the tree.
type source struct {
	fset  *token.FileSet
	file  *ast.File
	names map[string]string // import path: name in this file
}

func parse(t *testing.T, name string) source {
	t.Helper()
	s := source{fset: token.NewFileSet(), names: map[string]string{}}
	var err error
	if s.file, err = parser.ParseFile(s.fset, name, nil, parser.SkipObjectResolution); err != nil {
		t.Fatal(err)
	}
	for _, i := range s.file.Imports {
		from := strings.Trim(i.Path.Value, `"`)
		s.names[from] = path.Base(from)
		if i.Name != nil {
			s.names[from] = i.Name.Name
		}
	}
	return s
}

// uses lists where the file mentions pkg.name.
func (s source) uses(pkg string, names ...string) (at []token.Position) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains(names, sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && s.names[pkg] == x.Name {
			at = append(at, s.fset.Position(sel.Pos()))
		}
		return true
	})
	return at
}

// decides reports whether a function that is named as a decision stands in the file.
func (s source) decides() bool {
	return slices.ContainsFunc(s.file.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && (strings.HasPrefix(f.Name.Name, "Decide") || strings.HasPrefix(f.Name.Name, "Judge") || f.Name.Name == "Plan")
	})
}

// A file that decides takes the time and values, and returns what to do; so does all of recovery.
func TestDecisionsHaveNoClockNoContextNoLogNoNetwork(t *testing.T) {
	found := 0
	for _, p := range ours(t) {
		if p.ImportPath == "holdfast/standstill" { // judges the machine it runs on
			continue
		}
		for _, name := range p.GoFiles {
			s := parse(t, filepath.Join(p.Dir, name))
			if !s.decides() && p.ImportPath != "holdfast/recovery" && p.ImportPath != "holdfast/recovery/moves" {
				continue
			}
			found++
			for from := range s.names {
				if from == "context" || from == "log" || from == "log/slog" || from == "net" || strings.HasPrefix(from, "net/") ||
					from == "os" || from == "sync" || strings.HasPrefix(from, "sync/") || strings.HasPrefix(from, "github.com/") {
					t.Errorf("%s/%s decides and imports %s", p.ImportPath, name, from)
				}
			}
			for _, at := range s.uses("time", "Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick") {
				t.Errorf("%s: a decision asks the clock itself", at)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d files with decisions found", found)
	}
}

// A driver is its row in config's table and the files beside it; a scheme of that name is none.
func TestNobodyAsksWhichDriverItIs(t *testing.T) {
	for _, p := range ours(t) {
		for _, name := range p.GoFiles {
			if strings.HasPrefix(p.ImportPath, "holdfast/brokerapi") || p.ImportPath == "holdfast/agent/config" && strings.HasPrefix(name, "driver") {
				continue
			}
			s := parse(t, filepath.Join(p.Dir, name))
			ast.Inspect(s.file, func(n ast.Node) bool {
				text := ""
				switch n := n.(type) {
				case *ast.BasicLit:
					text = strings.Trim(n.Value, `"`)
				case *ast.SelectorExpr:
					text = n.Sel.Name
				default:
					return true
				}
				for _, driver := range config.DriverNames() {
					own, found := strings.CutPrefix(strings.ToLower(text), driver)
					if _, field := n.(*ast.SelectorExpr); found && driver != "http" && (field || own == "") {
						t.Errorf("%s: %s", s.fset.Position(n.Pos()), text)
					}
				}
				return true
			})
		}
	}
}

func TestOnlyMainEndsTheProcess(t *testing.T) {
	exits := 0
	for _, p := range ours(t) {
		for _, name := range p.GoFiles {
			s := parse(t, filepath.Join(p.Dir, name))
			for _, at := range append(s.uses("os", "Exit"), append(s.uses("log", "Fatal", "Fatalf", "Fatalln"), s.uses("syscall", "Exit")...)...) {
				if p.ImportPath == "holdfast" && name == "main.go" {
					exits++
					continue
				}
				t.Errorf("%s: ends the process", at)
			}
		}
	}
	if exits != 1 {
		t.Errorf("%d exits in main.go, want the one", exits)
	}
}

// CONTRIBUTING.md names the functions that three stories go through, and counts them.
func TestTheWaysThroughTheHouseAreThere(t *testing.T) {
	page, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	source := ""
	for _, dir := range []string{"agent", "agent/lease", "agent/process", "recovery", "recovery/topics", "cluster", "brokerapi/nats"} {
		files, _ := filepath.Glob(dir + "/*.go")
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source += string(text)
		}
	}
	ways := regexp.MustCompile(`(?m)^\| .* … .* \| (.*⇢.*) \| (\d+) \|$`).FindAllStringSubmatch(string(page), -1)
	if len(ways) != 3 {
		t.Fatalf("%d ways, want 3", len(ways))
	}
	for _, way := range ways {
		steps := regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(way[1], -1)
		if n := fmt.Sprint(len(steps) + strings.Count(way[1], "⇢")); n != way[2] {
			t.Errorf("%s: these are %s", way[0], n)
		}
		for _, step := range steps {
			of, name, ok := strings.Cut(step[1], ".")
			head := `\nfunc \(\w+ \*?` + of + `\) ` + name + `\(`
			if !ok {
				head = `\nfunc (\(\w+ \*?\w+\) )?` + of + `\(`
			}
			if !regexp.MustCompile(head).MatchString(source) {
				t.Errorf("%s is not there", step[1])
			}
		}
	}
}
