package agent

import "holdfast/recovery"

// unleasedExplanations are those that differ with --registration none.
var unleasedExplanations = map[string]explanation{
	"attachment/" + string(recovery.WhyRegistered): {
		text("The broker is up, and it is decided what becomes of this process of it."), text("Nothing to avoid."), nil},
	"attachment/degraded/" + string(recovery.WhyBrokerDown): {
		text("The broker is down. It counts as away from its last good answer on."),
		text("A broker that answers."), text("Start the broker, or find out why it does not answer.")},
	"attachment/" + string(recovery.WhyFailing): {
		text("The broker was away for longer than the TTL, and what becomes of it is to be decided."),
		text("A broker that restarts within the TTL."), text("Start the broker, or find out why it does not answer.")},
	"attachment/" + string(recovery.WhyRecovered): {
		text("The broker is up again, and it is decided what becomes of it."), text("Nothing to avoid."), nil},

	"mode/" + string(recovery.ReasonBoot):        {text("A first boot: no older data, and no state of this sidecar."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFastRestart): {text("The broker was away for less than the TTL, so its cluster has not declared it dead."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFullClusterRestart): {text("The broker was away for longer than the TTL, and its cluster knows of no other broker that is active: nobody can have taken over."),
		text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFleetExpired): {text("The broker did not answer for longer than the TTL, and its cluster knows of no other broker that is active: nobody can have taken over."),
		text("A broker that answers."), nil},
	"mode/" + string(recovery.ReasonStaleRestart): {
		text("The broker was away for longer than the TTL while its cluster lived on: other brokers are active. They have declared it dead, and its topics may have another owner."),
		text("A restart within the TTL. --lease-ttl should be the time after which the broker's own cluster declares it dead."),
		text("Check with the broker's own admin tool where its topics are, then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonRegistrationExpired): {
		text("The broker did not answer for longer than the TTL, and is the same process: it hung, or the host was suspended. Other brokers are active, and have declared it dead if it was silent towards them too."),
		text("A broker that answers within --health-timeout; --session-expired-policy reconnect keeps the mode."),
		text("Find out why it did not answer, then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonCorruptState): {text("The state file could not be read, so nothing is known of this broker's past; what was there is kept beside the new one."),
		text("A disk that keeps what was written."), text("Check the disk, then 'holdfast activate'.")},

	"readiness/lease": {text("What becomes of this broker process is not decided: it was away for longer than the TTL, and its cluster has not said yet whether others are active."),
		text("A broker that joins its cluster quickly."), text("If it lasts: look at the broker's own log.")},
	"registration/lost":   {text("The broker was away for longer than the TTL."), text("A restart within the TTL."), text("See the mode event after this one.")},
	"registration/held":   {text("The broker was away for less than the TTL, or not at all."), text("Nothing to avoid."), nil},
	"agent/stopped":       {text("The sidecar was stopped. The broker goes on: nobody takes over because its sidecar ends."), text("Nothing to avoid."), nil},
	"agent/state_unsaved": {text("The state directory could not be written. Nothing changes now; a restarted sidecar would know less, and drain the broker if in doubt."), text("Free space on the state directory's disk."), text("Free space, or make the directory writable.")},
	"agent/started":       {text("The sidecar was started."), text("Nothing to avoid."), nil},
}
