package agent

import "testing"

func TestTheSeverityOfAStatus(t *testing.T) {
	ready := ReadyStatus{OK: true}
	up, down := BrokerStatus{Up: "up"}, BrokerStatus{Up: "down"}
	failing := LeaseStatus{FailureStreak: 3, LastError: "timeout"}
	for _, row := range []struct {
		name string
		s    Status
		c    circumstances
		want Severity
	}{
		{"it serves", Status{Ready: ready, Attachment: "attached", Mode: "active", Broker: up}, circumstances{}, SeverityOK},
		{"renewals fail", Status{Ready: ready, Attachment: "degraded", Mode: "active", Broker: up, Lease: failing}, circumstances{}, SeverityWarning},
		{"a topic does not load", Status{Ready: ready, Mode: "active", Broker: up, Topics: TopicCounts{Missing: 1}}, circumstances{}, SeverityWarning},
		{"another broker has the topic", Status{Ready: ready, Mode: "active", Broker: up, Topics: TopicCounts{Missing: 1, Elsewhere: 1}}, circumstances{}, SeverityOK},
		{"the guard is absent", Status{Ready: ready, Mode: "active", Broker: up}, circumstances{risk: true}, SeverityWarning},
		{"recovery is paused", Status{Ready: ready, Mode: "active", Broker: up, Pause: &PauseStatus{}}, circumstances{}, SeverityInfo},
		{"a pause hides nothing", Status{Ready: ready, Mode: "active", Broker: up, Lease: failing, Pause: &PauseStatus{}}, circumstances{}, SeverityWarning},

		{"the sidecar just started", Status{Attachment: "detached", Broker: BrokerStatus{Up: "unknown"}}, circumstances{}, SeverityInfo},
		{"the first start, and the broker is not up yet", Status{Attachment: "detached", Broker: down}, circumstances{}, SeverityInfo},
		{"the first start, without etcd", Status{Attachment: "detached", Broker: up, Lease: failing}, circumstances{}, SeverityWarning},
		{"started again, before the decision", Status{Attachment: "detached", Broker: up}, circumstances{wasRegistered: true}, SeverityInfo},
		{"started again, without etcd", Status{Attachment: "detached", Broker: up, Lease: failing}, circumstances{wasRegistered: true}, SeverityCritical},
		{"it loads for the first time", Status{Attachment: "attached", Mode: "active", Broker: up}, circumstances{}, SeverityInfo},
		{"it loads again", Status{Attachment: "attached", Mode: "active", Broker: up}, circumstances{everReady: true}, SeverityWarning},

		{"the fence point has passed", Status{Attachment: "detached", Mode: "active", Broker: up, Lease: failing}, circumstances{everReady: true, wasRegistered: true}, SeverityCritical},
		{"the broker is down", Status{Attachment: "degraded", Mode: "active", Broker: down}, circumstances{everReady: true}, SeverityCritical},
		{"the broker is not heard of", Status{Attachment: "attached", Mode: "active", Broker: BrokerStatus{Up: "unknown"}}, circumstances{everReady: true}, SeverityWarning},
		{"the fence stopped the broker", Status{Attachment: "detached", Mode: "drained", Broker: down, StoppedBy: &StopStatus{By: "fence"}}, circumstances{asked: true}, SeverityCritical},
		{"its double is registered", Status{Attachment: "detached", Mode: "active", Broker: up}, circumstances{mustStop: true}, SeverityCritical},

		{"a person drained it", Status{Attachment: "attached", Mode: "drained", Broker: up}, circumstances{asked: true}, SeverityInfo},
		{"a person drained it and stopped the broker", Status{Attachment: "detached", Mode: "drained", Broker: down}, circumstances{asked: true}, SeverityInfo},
		{"a person drained it and etcd went", Status{Attachment: "detached", Mode: "drained", Broker: up, Lease: failing}, circumstances{asked: true}, SeverityWarning},
		{"it does not take the drain", Status{Attachment: "attached", Mode: "drained", Broker: BrokerStatus{Up: "up", Steering: "failing"}}, circumstances{asked: true}, SeverityWarning},
		{"it waits for a person", Status{Attachment: "attached", Mode: "drained", Broker: up}, circumstances{everReady: true}, SeverityWarning},

		{"a shadow serves", Status{Ready: ready, Mode: "active", Broker: up, Shadow: true}, circumstances{}, SeverityOK},
		{"a shadow would fence", Status{Attachment: "detached", Mode: "active", Broker: up, Shadow: true}, circumstances{everReady: true}, SeverityWarning},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := severityOf(row.s, row.c); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}
