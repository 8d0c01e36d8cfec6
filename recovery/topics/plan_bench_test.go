package topics

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"holdfast/recovery"
)

func benchFacts(n int) map[string]recovery.PlanFacts {
	facts := make(map[string]recovery.PlanFacts, n)
	for i := range n {
		facts[fmt.Sprintf("/default/topic-%05d", i)] = recovery.PlanFacts{Assigned: true, Serving: i%2 == 0}
	}
	return facts
}

// BenchmarkPlan10000 plans 10,000 topics of which half are missing. The limit of the
// issue is 50 ms.
func BenchmarkPlan10000(b *testing.B) {
	in := recovery.PlanInput{
		Now: time.Now(), Orders: recovery.Orders{Mode: recovery.Active, Attached: true}, AssignedKnown: true, ServedKnown: true,
		Topics: maps.All(benchFacts(10_000)), Window: 30 * time.Second, Share: 0.5,
	}
	b.ReportAllocs()
	for b.Loop() {
		if w := recovery.Plan(in); len(w.Load) != 5_000 {
			b.Fatalf("load %d topics, want 5000", len(w.Load))
		}
	}
}
