package rest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestMetricsTellTheStart(t *testing.T) {
	for _, c := range []struct {
		name, text string
		start      time.Time
		families   int
	}{
		{"typed", "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1700000000.25\n", time.UnixMilli(1700000000250), 1},
		{"untyped, labelled", "process_start_time_seconds{cluster=\"c\"} 1.7e9\n", time.Unix(1700000000, 0), 1},
		{"what stands before nonsense", "process_start_time_seconds 1.7e9\n<html>\na 1\n", time.Unix(1700000000, 0), 1},
		{"more than is read", "process_start_time_seconds 1.7e9\n" + strings.Repeat("a{b=\"c\"} 1\n", maxMetrics/8), time.Unix(1700000000, 0), 2},
		{"a start that is none", "process_start_time_seconds -1\nprocess_start_time_seconds NaN\nprocess_start_time_seconds +Inf\n", time.Time{}, 1},
		{"a web page", "<html>\n", time.Time{}, 0},
		{"nothing", "", time.Time{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.text)) }))
			defer web.Close()
			families, err := opened(t, Config{URL: web.URL}).Metrics(bound(t), "/metrics")
			if at := Started(families); err != nil || !at.Equal(c.start) || len(families) != c.families {
				t.Errorf("%v, %d families, %v; want %v, %d", at, len(families), err, c.start, c.families)
			}
		})
	}
}
