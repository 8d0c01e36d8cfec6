package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"holdfast/cluster"
	etcd "holdfast/cluster/memory"
	"holdfast/recovery"
)

// An etcd that is full goes on to renew leases.
func TestAStateKeyThatEtcdRefusesIsWrittenAgainAtAPace(t *testing.T) {
	inLife(t, nil, func(l *sidecarLife) {
		store := etcd.New(etcd.Config{})
		var writes atomic.Int32
		store.SetFault(func(string) error {
			writes.Add(1)
			return etcd.ErrNoSpace
		})
		way := etcd.NewLink()
		way.SetDelay(func(etcd.Direction) time.Duration { return 5 * time.Millisecond })
		l.inLoop(func() {
			l.main = cluster.Over(cluster.Config{}, store.Conn(way), nil)
			l.stateSeen(nil, "", 1_000_000, 0, 1_000_000)
		})
		l.until(l.age() + time.Minute)
		if n := writes.Load(); n < 10 || n > 61 {
			t.Errorf("%d writes in a minute, want at most one each %v", n, assertAgain)
		}
		store.SetFault(nil)
		l.until(l.age() + 3*time.Second)
		l.inLoop(func() {
			if l.reassert {
				t.Error("not written although etcd takes it")
			}
		})
	})
}

func TestADrainWithoutAReasonKeepsTheOneThatIsThere(t *testing.T) {
	drained := recovery.ModeRecord{Mode: recovery.Drained, Reason: "disk swap", By: recovery.ByOperator}
	for _, row := range []struct {
		name   string
		mode   recovery.Mode
		why    recovery.Reason
		before recovery.ModeRecord
		want   recovery.Reason
	}{
		{"drained already", recovery.Drained, "", drained, "disk swap"},
		{"drained already, for another reason now", recovery.Drained, "new kernel", drained, "new kernel"},
		{"active until now", recovery.Drained, "", recovery.ModeRecord{Mode: recovery.Active, Reason: "boot"}, recovery.ReasonOperator},
		{"activated", recovery.Active, "", drained, recovery.ReasonOperator},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := recovery.ModeRecord{Mode: row.mode, Reason: row.want, By: recovery.ByOperator}
			if got := operatorsWord(row.mode, row.why, row.before); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}
