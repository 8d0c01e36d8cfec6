package alerttest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

const alertmanagerFile = folder + "alertmanager.example.yaml"

type route struct {
	Receiver       string   `json:"receiver"`
	GroupBy        []string `json:"group_by"`
	GroupWait      string   `json:"group_wait"`
	GroupInterval  string   `json:"group_interval"`
	RepeatInterval string   `json:"repeat_interval"`
	Matchers       []string `json:"matchers"`
	Routes         []route  `json:"routes"`
}

type inhibition struct {
	Source []string `json:"source_matchers"`
	Target []string `json:"target_matchers"`
	Equal  []string `json:"equal"`
}

type alertmanager struct {
	Route      route        `json:"route"`
	Inhibit    []inhibition `json:"inhibit_rules"`
	Recipients []struct {
		Name     string `json:"name"`
		Webhooks []any  `json:"webhook_configs"`
	} `json:"receivers"`
}

func example(t *testing.T) (a alertmanager) {
	t.Helper()
	text, err := os.ReadFile(alertmanagerFile)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// parsed are matchers as Alertmanager reads them.
func parsed(t *testing.T, matchers []string) (all labels.Matchers) {
	t.Helper()
	for _, text := range matchers {
		m, err := labels.ParseMatchers(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func matches(t *testing.T, matchers []string, of map[string]string) bool {
	t.Helper()
	set := model.LabelSet{}
	for name, value := range of {
		set[model.LabelName(name)] = model.LabelValue(value)
	}
	return parsed(t, matchers).Matches(set)
}

func (a alertmanager) inhibits(t *testing.T, source, target map[string]string) bool {
	return slices.ContainsFunc(a.Inhibit, func(i inhibition) bool {
		equal := !slices.ContainsFunc(i.Equal, func(label string) bool { return source[label] != target[label] })
		return equal && matches(t, i.Source, source) && matches(t, i.Target, target)
	})
}

func (a alertmanager) receiver(t *testing.T, labels map[string]string) string {
	for _, r := range a.Route.Routes {
		if matches(t, r.Matchers, labels) {
			return r.Receiver
		}
	}
	return a.Route.Receiver
}

func TestTheExampleSendsEachSeverityWhereItBelongs(t *testing.T) {
	a := example(t)
	want := map[string]string{"critical": "holdfast-pager", "warning": "holdfast-chat", "info": "holdfast-log"}
	for name, r := range alerts(t) {
		severity := r.Labels["severity"]
		if got := a.receiver(t, map[string]string{"alertname": name, "severity": severity}); got != want[severity] {
			t.Errorf("%s (%s) goes to %s", name, severity, got)
		}
	}
	if got := a.receiver(t, map[string]string{"alertname": "DiskFull", "severity": "critical"}); got == "holdfast-pager" {
		t.Error("alerts of others go to the pager")
	}
	var names []string
	for _, r := range a.Recipients {
		names = append(names, r.Name)
	}
	for _, r := range append(a.Route.Routes, a.Route) {
		if !slices.Contains(names, r.Receiver) {
			t.Errorf("no receiver is called %s", r.Receiver)
		}
	}
}

func TestTheExampleNamesAlertsThatThereAre(t *testing.T) {
	all := alerts(t)
	for _, i := range example(t).Inhibit {
		for _, m := range parsed(t, append(append([]string(nil), i.Source...), i.Target...)) {
			for name := range strings.SplitSeq(m.Value, "|") {
				if _, ok := all[name]; m.Name == "alertname" && !ok && !strings.HasSuffix(name, ".*") {
					t.Errorf("no alert is called %s", name)
				}
			}
		}
	}
}

func TestWhatIsHeldBackAndWhatIsNot(t *testing.T) {
	a, all := example(t), alerts(t)
	alert := func(name, cluster, instance string) map[string]string {
		labels := map[string]string{"alertname": name, "severity": all[name].Labels["severity"]}
		if name != "HoldfastAbsent" {
			labels["job"] = "holdfast"
		}
		if cluster != "" {
			labels["cluster"] = cluster
		}
		if instance != "" {
			labels["instance"] = instance
		}
		if labels["severity"] == "" {
			t.Errorf("no alert is called %s", name)
		}
		return labels
	}
	for name, row := range map[string]struct {
		source, target map[string]string
		want           bool
	}{
		"many leases lost: not each broker's":          {alert("HoldfastManyLeasesLost", "eu", ""), alert("HoldfastLeaseLost", "eu", "b1"), true},
		"many leases lost, without clusters":           {alert("HoldfastManyLeasesLost", "", ""), alert("HoldfastEtcdUnreachable", "", "b1"), true},
		"many leases lost in another cluster":          {alert("HoldfastManyLeasesLost", "eu", ""), alert("HoldfastLeaseLost", "us", "b1"), false},
		"many leases lost, and one may serve":          {alert("HoldfastManyLeasesLost", "eu", ""), alert("HoldfastZombieUnregistered", "eu", "b1"), false},
		"many leases lost, and a fence failed":         {alert("HoldfastManyLeasesLost", "eu", ""), alert("HoldfastFencingFailed", "eu", "b1"), false},
		"many leases lost, and one waits for a person": {alert("HoldfastManyLeasesLost", "eu", ""), alert("HoldfastDrainedWaiting", "eu", "b1"), false},
		"critical before warning":                      {alert("HoldfastLeaseLost", "eu", "b1"), alert("HoldfastRenewalsFailing", "eu", "b1"), true},
		"critical of another broker":                   {alert("HoldfastLeaseLost", "eu", "b2"), alert("HoldfastRenewalsFailing", "eu", "b1"), false},
		"warning before critical":                      {alert("HoldfastRenewalsFailing", "eu", "b1"), alert("HoldfastLeaseLost", "eu", "b1"), false},
		"critical before critical":                     {alert("HoldfastLeaseLost", "eu", "b1"), alert("HoldfastSeveralOwners", "eu", "b1"), false},
		"down: what it said last":                      {alert("HoldfastDown", "eu", "b1"), alert("HoldfastRecoveryStuck", "eu", "b1"), true},
		"down: its zombie is not seen any more":        {alert("HoldfastDown", "eu", "b1"), alert("HoldfastZombieForeignOwner", "eu", "b1"), true},
		"down, and its fence had failed":               {alert("HoldfastDown", "eu", "b1"), alert("HoldfastFencingFailed", "eu", "b1"), false},
		"down, and so nothing is scraped":              {alert("HoldfastDown", "eu", "b1"), alert("HoldfastAbsent", "", ""), true},
		"the broker refuses, so topics are missing":    {alert("HoldfastReconcileFailing", "eu", "b1"), alert("HoldfastTopicsMissing", "eu", "b1"), true},
		"alerts of others":                             {alert("HoldfastDown", "eu", "b1"), map[string]string{"alertname": "DiskFull", "severity": "warning", "cluster": "eu", "job": "holdfast", "instance": "b1"}, false},
	} {
		if got := a.inhibits(t, row.source, row.target); got != row.want {
			t.Errorf("%s: held back: %v", name, got)
		}
	}
}
