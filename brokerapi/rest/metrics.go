package rest

import (
	"bytes"
	"context"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxMetrics is how much of a broker's metrics is read, in bytes: those of its process come
// first, and a label that all have is in the first line.
const maxMetrics = 1 << 20

// Metrics reads the beginning of what the broker exposes to Prometheus, as far as it can be
// read: a metric that is missing is never an error.
func (c *Client) Metrics(ctx context.Context, path string) (map[string]*dto.MetricFamily, error) {
	a, err := c.Do(ctx, Request{Path: path, Accept: "text/plain", enough: maxMetrics})
	if err != nil {
		return nil, err
	}
	if err := a.Want(http.StatusOK); err != nil {
		return nil, err
	}
	whole := a.Body[:bytes.LastIndexByte(a.Body, '\n')+1]
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, _ := parser.TextToMetricFamilies(bytes.NewReader(whole)) // what stands before an error is there
	return families, nil
}

// Started is when the process started, to the millisecond; zero: the metrics do not tell.
func Started(families map[string]*dto.MetricFamily) time.Time {
	for _, m := range families["process_start_time_seconds"].GetMetric() {
		for _, at := range []float64{m.GetGauge().GetValue(), m.GetUntyped().GetValue(), m.GetCounter().GetValue()} {
			if at > 0 && at < 1e11 { // NaN is neither
				return time.UnixMilli(int64(at * 1000)).UTC()
			}
		}
	}
	return time.Time{}
}
