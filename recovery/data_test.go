package recovery

import (
	"strings"
	"testing"
	"time"
)

func TestDataIsMissingOnlyOnProof(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const had, has = "jetstream@12-1700000000.000000000", "jetstream@12-1800000000.000000000"
	marked := func(age time.Duration) BootFacts {
		return BootFacts{BrokerStartedAt: started, OldestMarker: started.Add(-age), MarkerPath: "meta.inf"}
	}
	for _, c := range []struct {
		name       string
		remembered DataID
		found      DataID
		f          BootFacts
		missing    bool
	}{
		{"the same directory", had, had, marked(time.Hour), false},
		{"the same directory, its markers rewritten by the new process", had, had, marked(-time.Second), false},
		{"the same directory, empty", had, had, BootFacts{BrokerStartedAt: started}, false},
		{"another, empty", had, has, BootFacts{BrokerStartedAt: started}, true},
		{"another, empty, and the broker does not tell its start", had, has, BootFacts{}, true},
		{"another, filled by the new process", had, has, marked(-time.Second), true},
		{"another, filled in the moment of the start", had, has, marked(0), true},
		{"another, filled before the start", had, has, marked(time.Second), false},
		{"another, filled, and the broker does not tell its start", had, has, BootFacts{OldestMarker: started}, false},
		{"another inode, born in the same moment", had, "jetstream@13-1700000000.000000000", BootFacts{BrokerStartedAt: started}, true},
		{"not there", had, "", BootFacts{BrokerStartedAt: started, DirGone: "/data/jetstream"}, true},
		{"not there, and nothing is remembered", "", "", BootFacts{BrokerStartedAt: started, DirGone: "/data/jetstream"}, false},
		{"nothing is remembered", "", has, BootFacts{BrokerStartedAt: started}, false},
		{"nothing is known now", had, "", BootFacts{BrokerStartedAt: started}, false},
		{"another name", had, ".@2-1800000000.000000000", BootFacts{BrokerStartedAt: started}, false},
		{"unreadable", had, has, BootFacts{BrokerStartedAt: started, DirError: "permission denied"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			how := DataMissing(c.remembered, c.found, c.f)
			if (how != "") != c.missing || c.missing && !strings.Contains(how, "jetstream") {
				t.Errorf("%q, want missing: %t", how, c.missing)
			}
		})
	}
}
