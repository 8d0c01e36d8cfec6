package dashboards

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"

	"holdfast/lab/harness"
	"holdfast/lab/prom"
)

// bound is for waits that claim nothing about time.
const bound = 60 * time.Second

// The stand's sidecars are scraped twice: as a job whose targets have a cluster, and as
// one whose targets have none.
const (
	labelled = "holdfast"
	plain    = "holdfast-plain"
)

// pace is how fast the story goes.
type pace struct {
	ttl    time.Duration // of the broker that is cut off
	others time.Duration // TTL of the others
	scrape time.Duration
	window int // scrapes in the range of a rate; Grafana takes four
	calm   int // scrapes between two events
}

// quick is enough for every query to have an answer. A machine that stands still for a
// while changes nothing: who is not cut off has time, and a rate bears missed scrapes.
var quick = pace{ttl: 8 * time.Second, others: time.Minute, scrape: 500 * time.Millisecond, window: 24, calm: 3}

// stand is an etcd, three NATS servers with their sidecars, and a Prometheus that has
// scraped them while things went wrong.
type stand struct {
	pace
	prom       *prom.Prometheus
	start, end time.Time
	lost       string // instance of the broker that was cut off for longer than its TTL
}

func (s *stand) span() time.Duration { return s.end.Sub(s.start) }

// standing plays the faults once. Each moment is awaited, so that it is scraped.
func standing(t *testing.T, at pace) *stand {
	t.Helper()
	ctx, lab := t.Context(), harness.ForTest(t)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	etcd, err := lab.StartEtcd(ctx, harness.EtcdOptions{})
	ok(err)
	link, err := harness.NewProxyLink(lab, etcd)
	ok(err)
	p, err := prom.Start(ctx, prom.Config{ScrapeInterval: at.scrape})
	ok(err)
	t.Cleanup(func() { ok(p.Close()) })

	var brokers []*harness.NATS
	var sidecars []*harness.Sidecar
	var keys harness.Keys
	s := &stand{pace: at, prom: p, start: time.Now(), lost: "n1:9809"}
	for i, endpoint := range []string{link.Endpoint(), etcd.Endpoint(), etcd.Endpoint()} {
		ttl := at.others
		if i == 0 {
			ttl = at.ttl
		}
		id := fmt.Sprintf("n%d", i+1)
		n, err := lab.StartNATS(ctx, harness.NATSOptions{Name: id})
		ok(err)
		ok(keys.Assign(ctx, etcd.Client(), id, "/shop/orders-"+id, "/shop/bills-"+id, "/shop/mails-"+id))
		sc, err := lab.StartSidecar(harness.SidecarOptions{Broker: n, Endpoints: []string{endpoint}, Flags: []string{
			"--lease-ttl", ttl.String(), "--detachment-recover-window", "200ms", "--health-interval", "100ms", "--health-rise", "1",
			"--audit-interval", "1s", "--data-dir", n.StoreDir,
		}})
		ok(err)
		address := strings.TrimPrefix(sc.WebURL(), "http://")
		ok(p.Target(labelled, address, map[string]string{"instance": id + ":9809", "cluster": "shop"}))
		ok(p.Target(plain, address, map[string]string{"instance": id + ":9809"}))
		brokers, sidecars = append(brokers, n), append(sidecars, sc)
	}
	seen := func(times int) {
		t.Helper()
		for range times {
			within, cancel := context.WithTimeout(ctx, bound)
			ok(p.AwaitScrape(within))
			cancel()
		}
	}
	await := func(i int, what string, is func(harness.Status) bool) {
		t.Helper()
		_, err := sidecars[i].Await(ctx, bound, what, is)
		ok(err)
		seen(2)
	}
	for _, sc := range sidecars {
		ok(sc.AwaitReady(ctx, bound))
	}
	seen(2 * at.calm)

	// A broker restarts, an assignment is taken away.
	ok(brokers[1].Kill())
	await(1, "the broker to be down", func(st harness.Status) bool { return st.Broker.Up != "up" })
	ok(brokers[1].Start(ctx))
	ok(sidecars[1].AwaitReady(ctx, bound))
	_, err = etcd.Client().Delete(ctx, keys.Assignment("n3", "/shop/mails-n3"))
	ok(err)
	await(2, "two topics", func(st harness.Status) bool { return st.Topics.Assigned == 2 && st.Topics.Served == 2 })
	seen(at.calm)

	// A person takes one out.
	if res, err := sidecars[2].Verb(ctx, "drain", "--reason", "new disk"); err != nil || res.Exit != 0 {
		t.Fatalf("drain: %v %+v", err, res)
	}
	seen(at.calm)

	// One is cut off until its registration is gone, and waits for a person.
	ok(link.Cut())
	await(0, "the broker to be detached", func(st harness.Status) bool { return st.Attachment == "detached" })
	ok(harness.Await(ctx, bound, "the registration of n1 to be gone", func(ctx context.Context) (bool, string) {
		reg, err := keys.ReadRegistration(ctx, etcd.Client(), "n1")
		return err == nil && reg.CreateRevision == 0, fmt.Sprint(reg, err)
	}))
	seen(at.calm)
	ok(link.Heal())
	await(0, "the broker to be drained", func(st harness.Status) bool { return st.Mode == "drained" && st.Attachment == "attached" })
	seen(2 * at.calm)
	s.end = time.Now()
	return s
}

// chosen is the choice of one broker or of all, as Grafana writes several into a query.
func (s *stand) chosen(cluster, job string, instances ...string) choice {
	instance := ".+"
	if len(instances) > 0 {
		var quoted []string
		for _, i := range instances {
			quoted = append(quoted, strings.ReplaceAll(regexp.QuoteMeta(i), `\`, `\\`))
		}
		instance = "(" + strings.Join(quoted, "|") + ")"
	}
	return choice{cluster, job, instance, milliseconds(time.Duration(s.window) * s.scrape), milliseconds(s.span())}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// ask evaluates an expression over the whole time of the stand.
func (s *stand) ask(t *testing.T, c choice, expr string) promql.Matrix {
	t.Helper()
	m, err := s.prom.QueryRange(t.Context(), c.put(expr), s.start, s.end, s.scrape)
	if err != nil {
		t.Errorf("%v", err)
	}
	return m
}

// finite is the series with a value that is a number.
func finite(m promql.Matrix) (list promql.Matrix) {
	for _, series := range m {
		for _, p := range series.Floats {
			if !math.IsNaN(p.F) && !math.IsInf(p.F, 0) {
				list = append(list, series)
				break
			}
		}
	}
	return list
}
