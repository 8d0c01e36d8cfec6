package danube

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast/brokerapi/rest"
)

// newScraper is the client for the metrics, which are not asked with the token.
func newScraper(cfg Config, at addresses, patience time.Duration) (*rest.Client, error) {
	to := rest.Config{Setting: "--danube-metrics", URL: at.metrics.String(), Timeout: patience}
	if at.metrics.Scheme == "https" {
		to.CACert, to.Cert, to.Key = cfg.CACert, cfg.Cert, cfg.Key
	}
	return rest.New(to)
}

// scrape reads the broker's metrics.
func (n *node) scrape(ctx context.Context) (exposed, error) {
	if n.life.Err() != nil {
		return exposed{}, errClosed
	}
	if deadline, ok := ctx.Deadline(); ok { // what is left is for those who can be asked instead
		patience := min(n.timeout, time.Until(deadline)/2)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v: %w", patience.Round(time.Millisecond), context.DeadlineExceeded))
		defer cancel()
	}
	families, err := n.metrics.Metrics(ctx, "/metrics")
	if err != nil {
		return exposed{}, err
	}
	e := exposed{StartedAt: rest.Started(families)}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if id := l.GetValue(); l.GetName() == "broker" && id != "" && len(e.Brokers) < 3 && !slices.Contains(e.Brokers, id) {
					e.Brokers = append(e.Brokers, id)
				}
			}
		}
	}
	return e, nil
}

// exposed is what the broker's metrics say about the process, as far as we need it.
type exposed struct {
	Brokers   []string  // different values of the label "broker"
	StartedAt time.Time // zero: the metrics do not tell
}
