package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/recovery"
	"holdfast/recovery/topics"
)

const (
	scrapedTopics = 10_000
	maxScrape     = 200_000 // bytes
	maxScrapeTime = 3 * time.Millisecond
	// usualBaseline is about what a scrape of the Go collector alone takes where the
	// three milliseconds are meant: a machine that takes longer for it has longer for ours.
	usualBaseline = 150 * time.Microsecond
)

// servingBroker serves topics, and fails to load any other.
type servingBroker struct {
	stillBroker
	topics []string
}

func (b servingBroker) Topics(context.Context) (topics.Held, error) {
	return topics.Held{Serving: b.topics}, nil
}

func (b servingBroker) Serve(_ context.Context, topic string, _ []byte) error {
	return fmt.Errorf("no such topic: %s", topic)
}

// scrapable is the web listener of a sidecar whose broker serves some topics, of which the
// first half and the missing are assigned to it.
func scrapable(t testing.TB, served, missing []string) http.Handler {
	t.Helper()
	reg := prometheus.NewRegistry()
	a := builtOn(t, reg, servingBroker{topics: served})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.reconciler.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	a.reconciler.SetAssigned(1, true, append(slices.Clone(served[:len(served)/2]), missing...), nil)
	a.reconciler.SetOrders(recovery.Orders{Epoch: 1, Mode: recovery.Active, Attached: true, Instance: "i"})
	bound := time.After(patience)
	for p := a.reconciler.Snapshot(); p.Served+p.Orphan < len(served) || p.Failed < len(missing); p = a.reconciler.Snapshot() {
		select {
		case <-a.reconciler.Changes():
		case <-bound:
			t.Fatalf("not as it should be within %v: %+v", patience, p)
		}
	}
	return a.webHandler(reg)
}

func numberedTopics(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("/default/topic-%05d", i)
	}
	return list
}

// The forms that Prometheus may ask for.
var scrapeForms = map[string]string{
	"text":        "text/plain;version=0.0.4",
	"OpenMetrics": "application/openmetrics-text;version=1.0.0",
	"protobuf":    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
}

func scrape(t testing.TB, h http.Handler, form string) string {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", form)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestAScrapeIsNoLargerForTenThousandTopicsThanForNone(t *testing.T) {
	h, few := scrapable(t, numberedTopics(scrapedTopics), nil), scrapable(t, numberedTopics(2), nil)
	for name, form := range scrapeForms {
		size, small := len(scrape(t, h, form)), len(scrape(t, few, form))
		t.Logf("%s: %d bytes with %d topics, %d with two", name, size, scrapedTopics, small)
		if size > maxScrape {
			t.Errorf("%s: %d bytes, want at most %d", name, size, maxScrape)
		}
		if size > small+small/10 { // digits, and buckets of histograms
			t.Errorf("%s: %d bytes with many topics, %d with two", name, size, small)
		}
	}
}

// Whatever a topic is called, and whether it is served, an orphan, missing or fails, no
// metric has its name, in whole or in part.
func TestAScrapeHasNoTopicsNameHoweverStrange(t *testing.T) {
	strange := []string{"/n/tattle", "/tattle/n", `/n/tattle"} 1`, "/n/tattle\nholdfast_tattle 1", "/n/tattle{a=\"b\"}", "/n/tattle\\", "/n/táttle-tattle", "/n/\xfftattle",
		"/n/tattle #", "/n/tattle,", "/n/" + strings.Repeat("tattle", 50), "/n/tattle\x00", "/n/tattle\u2028", "/n/state-tattle", "/n/__name__tattle", "/n/le=tattle"}
	var missing []string
	for _, name := range strange {
		missing = append(missing, strings.Replace(name, "/n", "/m", 1))
	}
	h := scrapable(t, strange, missing)
	for name, form := range scrapeForms {
		body := scrape(t, h, form)
		if i := strings.Index(body, "tattle"); i >= 0 {
			t.Errorf("%s: …%q…", name, body[max(0, i-80):min(len(body), i+40)])
		}
		if !strings.Contains(body, "holdfast_topics") {
			t.Errorf("%s: not the metrics of a sidecar: %q", name, body)
		}
	}
}

// BenchmarkScrape times scrapes in turns with those of a registry that has the Go collector
// only, so that what else the machine does hits both alike. It fails when the median is over
// the limit, on a machine whose baseline is as usual, and in that proportion on a slower one.
func BenchmarkScrape(b *testing.B) {
	h := scrapable(b, numberedTopics(scrapedTopics), nil)
	bare := prometheus.NewRegistry()
	bare.MustRegister(collectors.NewGoCollector())
	baseline := promhttp.HandlerFor(bare, promhttp.HandlerOpts{})
	timed := func(h http.Handler) time.Duration {
		begin := time.Now()
		scrape(b, h, scrapeForms["text"])
		return time.Since(begin)
	}
	timed(h)
	timed(baseline)
	var ours, theirs []time.Duration
	for b.Loop() {
		ours, theirs = append(ours, timed(h)), append(theirs, timed(baseline))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	median, base := ours[len(ours)/2], theirs[len(theirs)/2]
	limit := maxScrapeTime * max(base, usualBaseline) / usualBaseline
	b.ReportMetric(float64(median.Microseconds()), "µs/scrape")
	b.ReportMetric(float64(base.Microseconds()), "µs/baseline")
	b.ReportMetric(float64(median)/float64(base), "×baseline")
	b.ReportMetric(float64(len(scrape(b, h, scrapeForms["text"]))), "bytes")
	if b.N > 1 {
		b.Logf("%d topics: a scrape takes %v, one of the Go collector alone %v; limit %v", scrapedTopics, median, base, limit)
	}
	if median > limit {
		b.Errorf("a scrape takes %v, want at most %v (3 ms where the baseline is %v; here it is %v)", median, limit, usualBaseline, base)
	}
}
