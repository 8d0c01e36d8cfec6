package danube

import (
	"slices"
	"time"

	"holdfast/brokerapi/exposition"
)

// exposed is what the broker's metrics say about the process, as far as we need it.
type exposed struct {
	Brokers   []string  // different values of the label "broker", in the order they came
	StartedAt time.Time // zero: the metrics do not tell
}

// take reads one line in the text format of Prometheus. One that it cannot read it skips.
func (e *exposed) take(line string) {
	sample, ok := exposition.Parse(line)
	if !ok {
		return
	}
	if id := sample.Labels["broker"]; id != "" && len(e.Brokers) < 3 && !slices.Contains(e.Brokers, id) {
		e.Brokers = append(e.Brokers, id)
	}
	if at, ok := sample.Start(); ok {
		e.StartedAt = at
	}
}
