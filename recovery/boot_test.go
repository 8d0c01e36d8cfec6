package recovery

import (
	"strings"
	"testing"
	"time"
)

func TestOnlyTheAbsenceOfAllEvidenceIsAFirstBoot(t *testing.T) {
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		f    BootFacts
		want BootKind
		says string // part of the evidence
	}{
		{"nothing at all", BootFacts{}, FirstBoot, "unknown to etcd"},
		{"nothing, and the broker tells its start", BootFacts{BrokerStartedAt: start}, FirstBoot, "no older data"},
		{"marker older than the process", BootFacts{BrokerStartedAt: start, OldestMarker: start.Add(-time.Minute), MarkerPath: "/d/m"}, Restart, "/d/m is 1m0s older"},
		{"marker a nanosecond older", BootFacts{BrokerStartedAt: start, OldestMarker: start.Add(-1), MarkerPath: "/d/m"}, Restart, "/d/m"},
		{"marker as old as the process", BootFacts{BrokerStartedAt: start, OldestMarker: start, MarkerPath: "/d/m"}, FirstBoot, "no older data"},
		{"marker that this process wrote", BootFacts{BrokerStartedAt: start, OldestMarker: start.Add(time.Second), MarkerPath: "/d/m"}, FirstBoot, "no older data"},
		{"marker, and the broker does not tell its start", BootFacts{OldestMarker: start, MarkerPath: "/d/m"}, Restart, "does not say when it started"},
		{"unreadable data directory", BootFacts{DirError: "permission denied"}, Restart, "permission denied"},
		{"unreadable, beside a new marker", BootFacts{DirError: "input/output error", BrokerStartedAt: start, OldestMarker: start.Add(time.Second)}, Restart, "input/output error"},
		{"our own state file", BootFacts{StateFile: true}, Restart, "state file records"},
		{"our own state file, corrupt", BootFacts{StateFileError: "unexpected end"}, Restart, "unexpected end"},
		{"known to etcd", BootFacts{KnownToCluster: true}, Restart, "etcd knows"},
		{"a new marker does not outweigh etcd", BootFacts{BrokerStartedAt: start, OldestMarker: start.Add(time.Second), KnownToCluster: true}, Restart, "etcd knows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, found := JudgeBoot(c.f)
			if got != c.want || !strings.Contains(strings.Join(found, "; "), c.says) {
				t.Errorf("%s, %q; want %s with %q", got, found, c.want, c.says)
			}
		})
	}
}

func TestEveryEvidenceIsTold(t *testing.T) {
	_, found := JudgeBoot(BootFacts{OldestMarker: time.Now(), MarkerPath: "/d/m", StateFile: true, KnownToCluster: true})
	if len(found) != 3 {
		t.Errorf("%q", found)
	}
}
