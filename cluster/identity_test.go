package cluster

import (
	"testing"
	"time"
)

func TestAnotherClusterIsBelievedOnlyWhenTheKnownOneIsLongSilent(t *testing.T) {
	var i Identity
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name     string
		id       uint64
		after    time.Duration
		believed bool
	}{
		{"the first answer", 7, 0, true},
		{"another cluster's", 8, time.Second, false},
		{"one that does not say", 0, time.Second, true},
		{"the known one's", 7, time.Minute, true},
		{"another's, just before the time", 8, otherClusterAfter - 1, false},
		{"another's, when a backup has been restored", 8, 1, true},
		{"the old one's", 7, time.Second, false},
	} {
		now = now.Add(c.after)
		if err := i.check(c.id, "etcd-1:2379", now); (err == nil) != c.believed {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
