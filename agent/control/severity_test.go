package control

import "testing"

func TestTheSeverityOfAStatus(t *testing.T) {
	ready := ReadyStatus{OK: true}
	up, down := BrokerStatus{Up: "up"}, BrokerStatus{Up: "down"}
	failing := LeaseStatus{FailureStreak: 3, LastError: "timeout"}
	for _, row := range []struct {
		name string
		s    Status
		c    Circumstances
		want Severity
	}{
		{"it serves", Status{Ready: ready, Attachment: "attached", Mode: "active", Broker: up}, Circumstances{}, SeverityOK},
		{"renewals fail", Status{Ready: ready, Attachment: "degraded", Mode: "active", Broker: up, Lease: failing}, Circumstances{}, SeverityWarning},
		{"a topic does not load", Status{Ready: ready, Mode: "active", Broker: up, Topics: TopicCounts{Missing: 1}}, Circumstances{}, SeverityWarning},
		{"another broker has the topic", Status{Ready: ready, Mode: "active", Broker: up, Topics: TopicCounts{Missing: 1, Elsewhere: 1}}, Circumstances{}, SeverityOK},
		{"the guard is absent", Status{Ready: ready, Mode: "active", Broker: up}, Circumstances{Risk: true}, SeverityWarning},
		{"recovery is paused", Status{Ready: ready, Mode: "active", Broker: up, Pause: &PauseStatus{}}, Circumstances{}, SeverityInfo},
		{"a pause hides nothing", Status{Ready: ready, Mode: "active", Broker: up, Lease: failing, Pause: &PauseStatus{}}, Circumstances{}, SeverityWarning},

		{"the sidecar just started", Status{Attachment: "detached", Broker: BrokerStatus{Up: "unknown"}}, Circumstances{}, SeverityInfo},
		{"the first start, and the broker is not up yet", Status{Attachment: "detached", Broker: down}, Circumstances{}, SeverityInfo},
		{"the first start, without etcd", Status{Attachment: "detached", Broker: up, Lease: failing}, Circumstances{}, SeverityWarning},
		{"started again, before the decision", Status{Attachment: "detached", Broker: up}, Circumstances{WasRegistered: true}, SeverityInfo},
		{"started again, without etcd", Status{Attachment: "detached", Broker: up, Lease: failing}, Circumstances{WasRegistered: true}, SeverityCritical},
		{"it loads for the first time", Status{Attachment: "attached", Mode: "active", Broker: up}, Circumstances{}, SeverityInfo},
		{"it loads again", Status{Attachment: "attached", Mode: "active", Broker: up}, Circumstances{EverReady: true}, SeverityWarning},

		{"the fence point has passed", Status{Attachment: "detached", Mode: "active", Broker: up, Lease: failing}, Circumstances{EverReady: true, WasRegistered: true}, SeverityCritical},
		{"the broker is down", Status{Attachment: "degraded", Mode: "active", Broker: down}, Circumstances{EverReady: true}, SeverityCritical},
		{"the broker is not heard of", Status{Attachment: "attached", Mode: "active", Broker: BrokerStatus{Up: "unknown"}}, Circumstances{EverReady: true}, SeverityWarning},
		{"the fence stopped the broker", Status{Attachment: "detached", Mode: "drained", Broker: down, StoppedBy: &StopStatus{By: "fence"}}, Circumstances{Asked: true}, SeverityCritical},
		{"its double is registered", Status{Attachment: "detached", Mode: "active", Broker: up}, Circumstances{MustStop: true}, SeverityCritical},

		{"a person drained it", Status{Attachment: "attached", Mode: "drained", Broker: up}, Circumstances{Asked: true}, SeverityInfo},
		{"a person drained it and stopped the broker", Status{Attachment: "detached", Mode: "drained", Broker: down}, Circumstances{Asked: true}, SeverityInfo},
		{"a person drained it and etcd went", Status{Attachment: "detached", Mode: "drained", Broker: up, Lease: failing}, Circumstances{Asked: true}, SeverityWarning},
		{"it does not take the drain", Status{Attachment: "attached", Mode: "drained", Broker: BrokerStatus{Up: "up", Steering: "failing"}}, Circumstances{Asked: true}, SeverityWarning},
		{"it waits for a person", Status{Attachment: "attached", Mode: "drained", Broker: up}, Circumstances{EverReady: true}, SeverityWarning},

		{"a shadow serves", Status{Ready: ready, Mode: "active", Broker: up, Shadow: true}, Circumstances{}, SeverityOK},
		{"a shadow would fence", Status{Attachment: "detached", Mode: "active", Broker: up, Shadow: true}, Circumstances{EverReady: true}, SeverityWarning},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := SeverityOf(row.s, row.c); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}
