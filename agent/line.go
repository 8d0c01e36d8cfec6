package agent

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/agent/control"
	"holdfast/agent/lease"
	"holdfast/agent/registration"
	"holdfast/cluster"
	"holdfast/recovery"
)

// renewalLine is the cluster's renewal connection as the lease wants it.
type renewalLine struct{ *cluster.Line }

func (l renewalLine) KeepAlive(ctx context.Context, id int64, fresh bool) (lease.Renewal, error) {
	renewal, err := l.Line.KeepAlive(ctx, id, fresh)
	return lease.Renewal(renewal), registration.LeaseError(err)
}

func (l renewalLine) Revoke(ctx context.Context, id int64) error {
	return l.Client().Revoke(ctx, id)
}

// endpoints is what a line to real endpoints can tell of them.
type endpoints interface {
	Endpoints() []cluster.EndpointState
}

var descEndpointUp = prometheus.NewDesc("holdfast_etcd_endpoint_up",
	"0 for five minutes after a renewal or its proof failed on this etcd endpoint, or was answered by another one first, unless it answers sooner: the member has no leader, is frozen or slow, or the way to it is cut. Else 1, also while it is not asked: renewals use one endpoint at a time.",
	[]string{"endpoint"}, nil)

// endpointGauges shows the state of the endpoints of a line.
type endpointGauges struct{ endpoints }

// Describe implements prometheus.Collector.
func (g endpointGauges) Describe(c chan<- *prometheus.Desc) { c <- descEndpointUp }

// Collect implements prometheus.Collector.
func (g endpointGauges) Collect(c chan<- prometheus.Metric) {
	for _, e := range g.Endpoints() {
		up := 0.0
		if e.Up {
			up = 1
		}
		c <- prometheus.MustNewConstMetric(descEndpointUp, prometheus.GaugeValue, up, e.URL)
	}
}

// watchEndpoints registers the metrics of the line's endpoints, where it has any.
func watchEndpoints(line Line, reg prometheus.Registerer) {
	if e, ok := line.(endpoints); ok {
		reg.MustRegister(endpointGauges{e})
	}
}

// classify names the class of a failure. Renewals that etcd answers, and that no read
// proves, have one of their own, unless the answer to the read says what is wrong.
func classify(err error) string {
	class := cluster.Classify(err)
	if errors.Is(err, lease.ErrUnproven) && (class == cluster.ClassTimeout || class == cluster.ClassOther) || errors.Is(err, lease.ErrForeign) {
		return string(recovery.FailureUnproven)
	}
	return string(class)
}

// explainRefused says what to do about an etcd that refuses us; any other error stays.
func (a *agent) explainRefused(err error) error {
	if cluster.Classify(err) == cluster.ClassAuth {
		return control.EtcdError(a.cfg, err)
	}
	return err
}

func failureClasses() []string {
	var names []string
	for _, c := range cluster.Classes {
		names = append(names, string(c))
	}
	return append(names, string(recovery.FailureUnproven))
}
