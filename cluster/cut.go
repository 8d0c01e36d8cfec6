package cluster

import (
	"encoding/json"
	"time"
)

// Cut is the note, in the member record, of a broker that was cut off from etcd for longer
// than it may serve, and whose registration stood all the same. It stays until the broker is
// registered anew, or cut off again.
type Cut struct {
	From  time.Time `json:"from"` // last confirmed renewal, by the clock of whoever was cut off
	Until time.Time `json:"until"`
	// Revision is the store's when the broker was back. It tells what else was before and after
	// that, which the times of two hosts do not.
	Revision int64 `json:"revision"`
	// Malformed says what stands there instead, and at which key, if it cannot be read; it is
	// never taken for no note.
	Malformed string `json:"-"`
}

// cutFormat is the newest format of a note that is understood here. None is written: a note
// without one is of the first.
const cutFormat = 1

// UnmarshalJSON bears fields that are not known. It has no error: a note that cannot be read
// must not hide the rest of the member record.
func (c *Cut) UnmarshalJSON(value []byte) error {
	type plain Cut
	var v struct {
		plain
		Format int `json:"format"`
	}
	if err := json.Unmarshal(value, &v); err != nil || v.Format > cutFormat || v.Revision <= 0 {
		*c = Cut{Malformed: excerpt(value)}
		return nil
	}
	*c = Cut(v.plain)
	return nil
}

// kept is the note as it is written again with the record that it stands in. What cannot be
// read is not.
func (c *Cut) kept() *Cut {
	if c == nil || c.Malformed != "" {
		return nil
	}
	k := *c
	k.From, k.Until = k.From.UTC(), k.Until.UTC()
	return &k
}
