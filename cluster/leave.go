package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Left is the note in the member record of a broker that its registration is given up: after a
// planned stop, when the broker was active and serves nothing any more, or, with Crash, after its
// process ended under the eyes of its sidecar. The next registration removes it.
type Left struct {
	At       time.Time `json:"at"`
	Epoch    int64     `json:"epoch"`          // create revision of the registration that was given up
	Instance string    `json:"instance"`       // broker process that left
	Data     string    `json:"data,omitempty"` // see Member
	Revision int64     `json:"revision"`       // of the store, as the note was decided on
	// Stop: that process is to be stopped now. Else it may run on: only its sidecar ends.
	Stop bool `json:"stop,omitempty"`
	// Crash: nobody planned it. The process was seen to have ended, and its registration is given
	// up before its lease ends. At is the last renewal of that lease if it was stopped.
	Crash bool `json:"crash,omitempty"`
	// Malformed says what stands there instead, and at which key, if it cannot be read; it is
	// never taken for no note.
	Malformed string `json:"-"`
}

// leftFormat is the newest format of a note that is understood here. None is written: a note
// without one is of the first.
const leftFormat = 1

// UnmarshalJSON bears fields that are not known. It has no error: a note that cannot be read
// must not hide the rest of the member record.
func (l *Left) UnmarshalJSON(value []byte) error {
	type plain Left
	var v struct {
		plain
		Format int `json:"format"`
	}
	if err := json.Unmarshal(value, &v); err != nil || v.Format > leftFormat || v.At.IsZero() || v.Epoch <= 0 {
		*l = Left{Malformed: excerpt(value)}
		return nil
	}
	*l = Left(v.plain)
	return nil
}

// plannedEpoch is the registration that the broker has given up on purpose; 0: none.
func (m *Member) plannedEpoch() int64 {
	if m == nil || m.Left == nil || m.Left.Crash {
		return 0
	}
	return m.Left.Epoch
}

// LeaveRequest says which registration is about to be given up on purpose.
type LeaveRequest struct {
	// Seen guards the note: the state and the member record are still as seen. It names the
	// broker.
	Seen    Snapshot
	Epoch   int64 // create revision of the registration that we hold
	LeaseID int64 // that it is under
	Left    Left
}

var errNoMember = errors.New("there is no member record to note it in")

// Leave notes in the member record that the broker leaves on purpose. The lease is still to
// be revoked: until then the broker is registered. It returns the revision, and ErrChanged
// when the registration is not that one under that lease any more, or the
// state or the member record is not as seen.
func (c *Client) Leave(ctx context.Context, req LeaveRequest) (int64, error) {
	id := req.Seen.BrokerID
	if err := checkBroker(id); err != nil {
		return 0, err
	}
	if req.Seen.Member == nil {
		return 0, fmt.Errorf("note that broker %s leaves: %w", id, errNoMember)
	}
	m := *req.Seen.Member
	m.Name, m.Left = cmp.Or(req.Seen.Name, id), &req.Left
	m.Left.At = m.Left.At.UTC()
	put, err := c.putMember(id, m)
	if err != nil {
		return 0, err
	}
	registration := c.keys.Registration(id)
	answer, err := c.write(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(registration), "=", req.Epoch),
		clientv3.Compare(clientv3.LeaseValue(registration), "=", req.LeaseID),
		clientv3.Compare(clientv3.ModRevision(c.keys.State(id)), "=", req.Seen.StateRevision),
		clientv3.Compare(clientv3.ModRevision(c.keys.Member(m.Name)), "=", req.Seen.MemberRevision),
	}, []clientv3.Op{put})
	if err != nil {
		return 0, fmt.Errorf("note that broker %s leaves: %w", id, err)
	}
	return answer.Header.Revision, nil
}
