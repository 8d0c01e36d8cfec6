package linear

import (
	"testing"
	"time"
)

// Each of these is what clients see when a move has lost, doubled, exchanged or delayed something.
func TestWhatIsNotOneLogIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		play func(h *History)
		fine bool
	}{
		"one after the other": {func(h *History) { h.Append("a")(1); h.Append("b")(2); h.Read(1)("a"); h.Len()(2) }, true},
		"two at a time, the later one first": {func(h *History) {
			first, second := h.Append("a"), h.Append("b")
			second(1)
			first(2)
			h.Read(2)("a")
		}, true},
		"nothing was heard, and it is there":        {func(h *History) { h.Append("a"); h.Append("b")(2); h.Read(1)("a") }, true},
		"nothing was heard, and it is not there":    {func(h *History) { h.Append("a"); h.Append("b")(1); h.Len()(1) }, true},
		"a read of which nothing was heard":         {func(h *History) { h.Append("a")(1); h.Read(7); h.Len()(1) }, true},
		"the last that was acknowledged is lost":    {func(h *History) { h.Append("a")(1); h.Append("b")(2); h.Len()(1) }, false},
		"its place is given again":                  {func(h *History) { h.Append("a")(1); h.Append("b")(2); h.Append("c")(2) }, false},
		"one in the middle is another":              {func(h *History) { h.Append("a")(1); h.Append("b")(2); h.Read(1)("b") }, false},
		"it is there twice":                         {func(h *History) { h.Append("a")(1); h.Append("b")(3); h.Len()(3) }, false},
		"it is read before anybody has appended it": {func(h *History) { h.Read(1)("a"); h.Append("a")(1) }, false},
	} {
		var h History
		c.play(&h)
		if err := h.Judge(time.Minute); (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
	var none *History
	none.Append("a")(1)
}
