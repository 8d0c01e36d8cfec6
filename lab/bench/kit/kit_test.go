package kit

import (
	"math"
	"testing"
)

func TestALimitHoldsUpToItAndNotBeyond(t *testing.T) {
	for _, row := range []struct {
		limit Limit
		want  bool
	}{
		{AtMost("ratio", 1.5, 1.5), true}, {AtMost("ratio", 1.501, 1.5), false}, {AtMost("nothing measured", math.NaN(), 1), false},
		{AtLeast("ratio", 0.8, 0.8), true}, {AtLeast("ratio", 0.799, 0.8), false}, {AtLeast("nothing measured", math.NaN(), 0), false},
	} {
		if row.limit.Holds() != row.want {
			t.Errorf("%s", row.limit)
		}
	}
}
