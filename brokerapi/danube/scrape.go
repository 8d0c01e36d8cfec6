package danube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/brokerapi/rest"
)

// maxMetrics is how much of the metrics is read, in bytes. Each line carries the label
// that is wanted, so what comes later is not missed.
const maxMetrics = 1 << 20

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
	if deadline, ok := ctx.Deadline(); ok { // what is left is for those who can be asked instead
		patience := min(n.timeout, time.Until(deadline)/2)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v: %w", patience.Round(time.Millisecond), context.DeadlineExceeded))
		defer cancel()
	}
	answer, err := n.metrics.Hold(ctx, rest.Request{Path: "/metrics", Accept: "text/plain"})
	if err != nil {
		return exposed{}, err
	}
	defer answer.Close()
	var e exposed
	for read := 0; read < maxMetrics; {
		line, err := answer.Line()
		if errors.Is(err, rest.ErrEnded) {
			break
		} else if err != nil {
			return exposed{}, err
		}
		read += len(line) + 1
		e.take(string(line))
	}
	return e, nil
}
