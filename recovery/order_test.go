package recovery

import (
	"reflect"
	"strings"
	"testing"
)

// rule is a row of a table, with facts that fit it.
type rule[F any] struct {
	name string
	row  Reason
	of   string // what the facts are about; two rules may contradict each other about the same
	fit  func(f *F)
}

// contradicts reports whether both are about the same.
func (r rule[F]) contradicts(other rule[F]) bool {
	for _, what := range strings.Fields(r.of) {
		if strings.Contains(other.of, what) {
			return true
		}
	}
	return false
}

// decidesFirst holds a table against its order: facts that fit two rows give the earlier one.
func decidesFirst[F any](t *testing.T, base F, decide func(F) Decision, rules []rule[F]) {
	t.Helper()
	pairs := 0
	for i, first := range rules {
		f := base
		first.fit(&f)
		if d := decide(f); d.Row != first.row {
			t.Errorf("%s: row %s (%s), want %s", first.name, d.Row, d.Detail, first.row)
		}
		for _, later := range rules[i+1:] {
			if first.row == later.row {
				continue
			}
			both, either := base, base
			later.fit(&both)
			first.fit(&both)
			first.fit(&either)
			later.fit(&either)
			if !reflect.DeepEqual(both, either) {
				if !first.contradicts(later) {
					t.Errorf("%s, and %s: both cannot be", first.name, later.name)
				}
				continue
			}
			pairs++
			if d := decide(both); d.Row != first.row {
				t.Errorf("%s, and %s: row %s (%s), want %s", first.name, later.name, d.Row, d.Detail, first.row)
			}
		}
	}
	if all := len(rules) * (len(rules) - 1) / 2; pairs < all*3/4 {
		t.Errorf("only %d of %d pairs compete", pairs, all)
	}
}
