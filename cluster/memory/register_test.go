package memory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster"
	"holdfast/cluster/memory"
)

// An operator's drain must not be written over by who decided before it.
func TestARegistrationIsGuardedByTheStateAsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := over(t, memory.New(memory.Config{}), nil)
		seen := snapshot(t, c)
		if _, err := c.PutState(t.Context(), "b1", cluster.State{Mode: cluster.ModeDrained, Reason: "new disks", By: "operator"}, 0); err != nil {
			t.Fatal(err)
		}
		_, err := c.Register(t.Context(), cluster.RegisterRequest{
			LeaseID: lease(t, c, time.Minute),
			Value:   []byte("{}"),
			Seen:    seen,
			State:   &cluster.State{Mode: cluster.ModeActive, Reason: "boot", By: "holdfast"},
			Member:  cluster.Member{Incarnation: "i", At: time.Now()},
		})
		if now := snapshot(t, c); !errors.Is(err, cluster.ErrChanged) || now.Registration != nil || now.State.Mode != cluster.ModeDrained {
			t.Errorf("%v, registration %v, state %+v", err, now.Registration, now.State)
		}
	})
}
