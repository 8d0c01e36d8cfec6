package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one edit.
type mutant struct {
	text string // "file: function: what was -> what it is", its name in survivors.txt
	line int
}

// file is a source file into which mutants are planted.
type file struct {
	name    string
	source  []byte
	set     *token.FileSet
	tree    *ast.File
	first   int // id of its first mutant
	mutants []mutant
	inserts []insert
}

// insert is text around a node: what stands further out begins earlier or ends later.
type insert struct {
	at, width int // width of the node: outer prefixes first, outer suffixes last
	suffix    bool
	text      string
}

func parse(name, dir string, first int) (*file, error) {
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f := &file{name: filepath.Join(dir, filepath.Base(name)), source: source, set: token.NewFileSet(), first: first}
	f.tree, err = parser.ParseFile(f.set, name, source, parser.ParseComments|parser.SkipObjectResolution)
	return f, err
}

func (f *file) offset(p token.Pos) int { return f.set.Position(p).Offset }

func (f *file) text(n ast.Node) string {
	return string(f.source[f.offset(n.Pos()):f.offset(n.End())])
}

// mutant notes one and returns its id.
func (f *file) mutant(n ast.Node, where, what string) int {
	f.mutants = append(f.mutants, mutant{fmt.Sprintf("%s: %s: %s", f.name, where, strings.Join(strings.Fields(what), " ")), f.set.Position(n.Pos()).Line})
	return f.first + len(f.mutants) - 1
}

func (f *file) around(n ast.Node, before, after string) {
	from, to := f.offset(n.Pos()), f.offset(n.End())
	f.inserts = append(f.inserts, insert{from, to - from, false, before}, insert{to, to - from, true, after})
}

// planted is the source with its mutants.
func (f *file) planted() []byte {
	slices.SortStableFunc(f.inserts, func(a, b insert) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.suffix != b.suffix: // what ends here, before what begins
			if a.suffix {
				return -1
			}
			return 1
		case a.suffix:
			return a.width - b.width
		default:
			return b.width - a.width
		}
	})
	var out []byte
	last := 0
	for _, i := range f.inserts {
		out = append(append(out, f.source[last:i.at]...), i.text...)
		last = i.at
	}
	return append(out, f.source[last:]...)
}

// turned is what a comparison becomes: its opposite, and the same moved by one.
var turned = map[token.Token][]string{
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LSS: {">=", "<="}, token.GEQ: {"<", ">"},
	token.GTR: {"<=", ">="}, token.LEQ: {">", "<"},
}

// decisions plants the rows of tables and the comparisons.
func (f *file) decisions() {
	for _, d := range f.tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			f.comparisons(d, d.Name.Name)
		case *ast.GenDecl:
			if d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				spec := spec.(*ast.ValueSpec)
				for _, v := range spec.Values {
					f.rows(v, spec.Names[0].Name)
				}
			}
		}
	}
}

// rows plants those of a table, and the comparisons in them.
func (f *file) rows(v ast.Expr, name string) {
	table, ok := v.(*ast.CompositeLit)
	if ok && len(table.Elts) > 1 { // a list of constants is none
		_, slice := table.Type.(*ast.ArrayType)
		_, row := table.Elts[0].(*ast.CompositeLit)
		ok = slice && row
	} else {
		ok = false
	}
	if !ok {
		f.comparisons(v, name)
		return
	}
	short := func(e ast.Expr) string {
		if row, ok := e.(*ast.CompositeLit); ok && len(row.Elts) > 0 {
			e = row.Elts[0]
		}
		return f.text(e)[:min(len(f.text(e)), 60)]
	}
	for _, row := range table.Elts {
		f.comparisons(row, name+" "+short(row))
	}
	first := f.first + len(f.mutants)
	for _, row := range table.Elts {
		f.mutant(row, name, short(row)+" left out")
	}
	for i, row := range table.Elts[1:] {
		f.mutant(row, name, short(table.Elts[i])+" swapped with the next")
	}
	f.around(table, fmt.Sprintf("mutatedRows(%d, ", first), ")")
}

func (f *file) comparisons(in ast.Node, where string) {
	ast.Inspect(in, func(n ast.Node) bool {
		b, ok := n.(*ast.BinaryExpr)
		if !ok || turned[b.Op] == nil {
			return true
		}
		before := "func() bool {"
		for _, op := range turned[b.Op] {
			instead := f.text(b.X) + " " + op + " " + f.text(b.Y)
			id := f.mutant(b, where, f.text(b)+" -> "+op)
			before += fmt.Sprintf(" if mutated(%d) { return %s };", id, instead)
		}
		f.around(b, before+" return ", " }()")
		return true
	})
}

// conditions plants the comparisons, and leaves out what stands with others in an and or an or.
func (f *file) conditions() {
	f.decisions()
	for _, d := range f.tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			b, ok := n.(*ast.BinaryExpr)
			if !ok || b.Op != token.LAND && b.Op != token.LOR {
				return true
			}
			for _, side := range []ast.Expr{b.X, b.Y} {
				if inner, ok := side.(*ast.BinaryExpr); ok && inner.Op == b.Op {
					continue
				}
				id := f.mutant(side, fn.Name.Name, f.text(b)+" without "+f.text(side))
				f.around(side, fmt.Sprintf("func() bool { if mutated(%d) { return %t }; return ", id, b.Op == token.LAND), " }()")
			}
			return true
		})
	}
}

// guards plants those of transactions: each may be true whatever etcd holds.
func (f *file) guards() {
	for _, d := range f.tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Type.Results != nil && len(fn.Type.Results.List) == 1 && f.text(fn.Type.Results.List[0].Type) == "clientv3.Cmp" {
			continue // it makes guards
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !slices.Contains([]string{"created", "written", "there", "under", "clientv3.Compare"}, f.text(call.Fun)) {
				return true
			}
			id := f.mutant(call, fn.Name.Name, f.text(call)+" -> true")
			f.around(call, fmt.Sprintf("func() clientv3.Cmp { if mutated(%d) { return clientv3.Compare(clientv3.Version(\"no such key\"), \"=\", 0) }; return ", id), " }()")
			return true
		})
	}
}
