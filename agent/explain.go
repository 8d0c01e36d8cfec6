package agent

import (
	"cmp"
	"fmt"

	"holdfast/recovery"
)

// explanation is what is known in general about one sort of event. %-verbs are not
// used: the settings' values are put in by the functions.
type explanation struct {
	why, avoid, next func(c Config) string
}

// guardMoment says when the guard stops the broker, and by which clock.
func guardMoment(c Config) string {
	return fmt.Sprintf("The guard stops the broker %s after the last confirmed renewal was sent (TTL %s minus a third of margin %s), on the boot clock, and later only while the sidecar goes on proving that nothing is served.",
		formatDuration(c.LeaseTTL-c.LeaseDetachMargin/3), formatDuration(c.LeaseTTL), formatDuration(c.LeaseDetachMargin))
}

func text(s string) func(Config) string { return func(Config) string { return s } }

// explanations by kind and the word that tells most: the reason, or what it became.
var explanations = map[string]explanation{
	"attachment/" + string(recovery.WhyRegistered): {
		text("The first registration of this sidecar stands in etcd."), text("Nothing to avoid."), nil},
	"attachment/" + string(recovery.WhyFailing): {
		text("A renewal got no confirmation. The lease still holds; retries go on, less than a second apart."),
		text("A reachable etcd with a leader. The class in the detail says what is missing."),
		text("If it does not recover by itself: check etcd ('etcdctl endpoint status') and the network between here and there.")},
	"attachment/" + string(recovery.WhyRecovered): {
		text("etcd confirmed a renewal before the fence point. Nobody was declared dead."), text("Nothing to avoid."), nil},
	"attachment/" + string(recovery.WhyFencePoint): {
		func(c Config) string {
			why := fmt.Sprintf("No renewal was confirmed for %s (TTL %s minus margin %s), counted from the send of the last one on the boot clock, which runs on while the host is suspended. The lease may end at any time after the deadline, so at the fence point before it %s.",
				formatDuration(c.LeaseTTL-c.LeaseDetachMargin), formatDuration(c.LeaseTTL), formatDuration(c.LeaseDetachMargin), atFencePoint(c))
			if c.Guard == "on" {
				why += " " + guardMoment(c)
			}
			return why
		},
		func(c Config) string {
			return fmt.Sprintf("A cut shorter than %s does not detach with these settings; a longer --lease-ttl bears a longer cut, and makes failover later.",
				formatDuration(c.Timing().SurvivesDetach()))
		},
		func(c Config) string {
			return "Nothing: it comes back by itself when etcd answers. If etcd declared it dead meanwhile, " + comesBack(c) + "."
		}},
	"attachment/" + string(recovery.WhyLeaseLost): {
		text("etcd says that the lease is gone: it ran out, or somebody revoked it."),
		text("Renewals that reach etcd in time, and nobody who revokes leases by hand."),
		text("See the next mode event: if it says drained, find the cause, then 'holdfast activate'.")},
	"attachment/degraded/" + string(recovery.WhyBrokerDown): {
		text("The broker is down, so its lease is not renewed. It still holds until the fence point."),
		text("A broker that answers."), text("Start the broker, or find out why it does not answer.")},
	"attachment/" + string(recovery.WhyMustGo): {
		text("The broker has lost the quorum of its own cluster, which this process had: for 20 s it knew no leader, or nothing was applied. The others declare it dead after 32 s, and healed it would delete the data of topics that they serve by then. So clients are kept away and its process is stopped; its next start is an ordinary one."),
		text("A network between the brokers that does not break, and an odd number of brokers."),
		text("Look at the way from this broker to the others. Without a way to stop its process here, stop it before the cut heals.")},
	"attachment/" + string(recovery.WhyLeft): {
		text("The broker left on purpose ('holdfast leave'): it serves nothing, that was noted, and its registration was given up."),
		text("Nothing to avoid."), text("Stop the broker and start it again: it comes back active. To take it back as it is: holdfast activate")},
	"attachment/" + string(recovery.WhyBrokerDown): {
		text("The broker was down, so its lease was not renewed, and the fence point passed."),
		text("A broker that restarts within the TTL."), text("If it runs and does not answer, stop it. Then start it, and find out why.")},
	"attachment/" + string(recovery.WhyConflict): {
		text("Another incarnation is registered under this broker id."), text("One sidecar for each broker id, each with a state directory of its own."),
		text("Stop one of the two.")},
	"attachment/" + string(recovery.WhyRecoverOver): {
		text("Renewals were confirmed throughout the recover window, and etcd showed the registration to be ours."), text("Nothing to avoid."), nil},

	"mode/" + string(recovery.ReasonBoot):               {text("A first boot: no older data, no state file, unknown to etcd."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFastRestart):        {text("The broker restarted within the TTL: its registration was still there, nobody took over."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFullClusterRestart): {text("For a moment no broker was registered at all: the whole cluster restarted, and nobody was singled out."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonFleetExpired):       {text("The whole fleet lost its registrations at once, or --fleet-loss-share of it lost theirs or was cut off from etcd at the same time: the fault was etcd's or the network's, and nobody was singled out."), text("An etcd that keeps its quorum, and a network that bears a short cut; a longer --lease-ttl."), text("Look at etcd, and at the way to it.")},
	"mode/" + string(recovery.ReasonJoin):               {text("Started with --join: a new member waits until an operator lets it in."), text("Start without --join."), text("holdfast activate")},
	"mode/" + string(recovery.ReasonFirstRegistration):  {text("The broker ran before Holdfast did, and nothing says that it ever was registered here: nobody can have declared it dead."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonPlannedRestart):     {text("The broker had left on purpose ('holdfast leave', or its sidecar was stopped): it served nothing any more, and that was noted before its registration was given up. Nobody can have declared it dead."), text("Nothing to avoid."), nil},
	"mode/" + string(recovery.ReasonUnknownData): {
		text("The broker was never registered here, and serves topics that are assigned to others, or to nobody where topics are assigned. Made active it might serve what another broker serves."),
		text("Assign to the broker what it serves before its sidecar is started."),
		text("Compare 'holdfast topics' with 'holdfast fleet'. Assign to this broker what is its own, then 'holdfast activate'; the rest stays quiesced.")},
	"mode/" + string(recovery.ReasonDataMissing): {
		text("The broker keeps its data for itself, and has come up on another directory than before, which holds nothing older than its process, or its data directory is not there: a disk was exchanged, wiped or not mounted, or --data-dir does not say where its data is. Made active it would offer topics without what was in them."),
		text("Bring the data to a new disk before the broker is started: what is older than its process is taken for its data. Change --data-dir with the broker's own setting."),
		text("Is the right disk mounted, and is --data-dir right? Else restore its data, or decide that the topics begin anew or go elsewhere; then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonStaleRestart): {
		func(c Config) string {
			why := "The broker came back after its registration had ended while others lived on: it ran out, or the sidecar gave it up when it was stopped. The cluster has declared the broker dead, and its topics may have another owner."
			if c.staysActive() {
				why += " Its storage fences writers that were replaced, so it is active all the same (--session-expired-policy reconnect)."
			}
			return why
		},
		text("A planned stop: 'holdfast leave' before the broker is stopped, or the sidecar stopped first. A restart within the TTL (raise --lease-ttl)."),
		func(c Config) string {
			if c.staysActive() {
				return ""
			}
			return "Check that no topic is served twice ('holdfast fleet', 'holdfast topics'), then 'holdfast activate'."
		}},
	"mode/" + string(recovery.ReasonRegistrationExpired): {
		text("The registration ran out while the broker ran and others lived on, so the cluster has declared it dead. Either etcd was out of reach for longer than the TTL, or this sidecar did not run: frozen, killed or starved. The events before this one tell which: attachment with the class of a failure, or guard_fired and resumed."),
		func(c Config) string {
			return fmt.Sprintf("A cut, or a pause of this sidecar, shorter than %s leaves the registration in etcd with these settings.", formatDuration(c.Timing().SurvivesExpiry()))
		},
		text("Find out what kept renewals from etcd ('holdfast events'), then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonRestoredBackup): {text("etcd is at a lower revision than this sidecar remembers, or holds a registration that it had confirmed to be given up: it was restored from a backup, and what it says of owners may be old."),
		text("Nothing here."), text("Check the owners of the topics, then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonCorruptState): {text("The state file could not be read, so nothing is known of this broker's past; it is kept beside the new one."),
		text("A disk that keeps what was written."), text("Check the disk, then 'holdfast activate'.")},
	"mode/" + string(recovery.ReasonUnreadableMode): {text("The state key in etcd does not hold a mode."), text("Change modes with 'holdfast activate' and 'holdfast drain' only."), text("holdfast activate")},
	"mode/" + string(recovery.ReasonUnreadableRecord): {
		text("Others lived on, or may have, and the one record that could say that this broker was not declared dead all the same cannot be read: the detail names the key. What it said is not guessed."),
		text("Nobody but Holdfast should write /cluster/era and below /cluster/members/."),
		text("Check that no topic is served twice ('holdfast fleet', 'holdfast topics'), then 'holdfast activate'. The broker's own record is written anew already; an era that cannot be read is counted anew from the member records once its key is deleted.")},
	"mode/" + string(recovery.RowKept): {text("The broker was drained or draining before, by an operator or by recovery, and nobody has activated it since. No start and no outage lifts that."),
		text("'holdfast activate' before the start, where the cause is understood."), text("When the cause is understood: holdfast activate")},
	"mode/" + string(recovery.RowReconnected): {text("The registration ended while others lived on, and --session-expired-policy reconnect had the broker registered again with the mode that it had."),
		text("Renewals that reach etcd within the TTL."), text("Find out what kept renewals from etcd ('holdfast events').")},
	"mode/reasserted": {text("Somebody deleted or overwrote the state key of a living broker, and other brokers read that as active. It was written again."),
		text("Whatever cleans up under /cluster/brokers/ should leave living brokers alone."), nil},

	"readiness/ready":          {text("Every condition of /ready holds: registered, attached, active, broker healthy, topics loaded."), text("Nothing to avoid."), nil},
	"readiness/lease":          {text("There is no lease that surely holds."), text("See the attachment events before this one."), nil},
	"readiness/attached":       {text("The broker is not attached to its cluster."), text("See the attachment events before this one."), nil},
	"readiness/mode":           {text("The mode is not active."), text("See the mode event before this one."), text("If the cause is understood: holdfast activate")},
	"readiness/broker":         {text("The broker's health is not certain."), text("See the broker events before this one."), text("Look at the broker's own log.")},
	"readiness/work":           {text("The broker's process is well, and a piece of work that it was asked to do failed, or was not done yet. Its lease goes on and nothing is stopped: what it keeps its messages in may be ill."), text("Look at what is behind the broker: its storage, above all (Pulsar: the bookies)."), text("Clients come back by themselves once it does its work: holdfast status has the last error.")},
	"readiness/topics":         {text("Not every assigned topic is loaded."), text("Nothing to avoid: startup waits for its topics."), text("If it takes long: 'holdfast topics --state missing'.")},
	"readiness/agent":          {text("The sidecar's own loop hangs."), text("Enough CPU for the sidecar."), text("Restart the sidecar; the lease bears it.")},
	"broker/up":                {text("The broker answered as healthy often enough."), text("Nothing to avoid."), nil},
	"broker/down":              {text("The broker failed its health check several times in a row, so its lease is not renewed any more."), text("A broker that answers within --health-timeout."), text("Look at the broker's own log. If it runs and does not answer while other brokers do, stop it. Then start it.")},
	"broker/unknown":           {text("The connection to the broker broke, or it has not answered yet. Unknown is not down: the lease is still renewed."), text("Nothing to avoid."), nil},
	"registration/lost":        {text("etcd says that the lease is gone: renewals did not reach etcd in time, or were stopped because the broker was down."), text("See the attachment events before this one."), text("See the events after this one.")},
	"registration/key_deleted": {text("Somebody deleted the registration or revoked its lease; other brokers have seen it go."), text("Nobody but Holdfast should write under /cluster/register/."), text("See the mode event after this one.")},
	"topics/ignored":           {text("A key below the broker's assignments does not have the form /namespace/topic."), text("Write assignments as /cluster/brokers/ID/NAMESPACE/TOPIC."), text("Delete the key, or write it in the right form.")},
	"topics/ignored/record":    {text("A key below the topic records does not have the form /namespace/topic, so no broker is given that topic."), text("Write records as /topics/NAMESPACE/TOPIC, behind --prefix."), text("Delete the key, or write it in the right form.")},
	"topics/placed":            {text("This sidecar gave topics to its broker, or its broker's topics to another: who has which follows from who is registered and active (--assignment rendezvous)."), text("Nothing to avoid."), nil},
	"topics/quarantined":       {text("The broker served topics that are not assigned to it, so they were quiesced. Their data stays."), text("Nothing, if the topics were moved on purpose."), text("To serve one again, assign it again.")},
	"topics/foreign_owner": {text("Topics that this broker held or served are owned by another one: it took their ownership locks while they were not ours, as after an outage. They were unloaded here at once."),
		text("A cut shorter than the TTL. Otherwise nobody but Holdfast should write under /cluster/owners/."), text("Nothing, if they are assigned to the other one. See 'holdfast topics' for who holds which.")},
	"registration/unreadable_record": {
		text("A record in etcd cannot be read: the era, this broker's member record, or the note of its planned stop. The detail names the key and what stands there. Somebody wrote it by hand, or a newer version did."),
		text("Nobody but Holdfast should write /cluster/era and below /cluster/members/."),
		text("A member record is mended by its broker's next registration. An era stays until a new one begins: 'etcdctl del' with its key has it counted anew from the member records.")},
	"agent/not_quiesced": {text("The sidecar was stopped and could not quiesce every topic, so it left the registration to run out: nobody may take over from a broker that still serves."), text("A broker that answers its admin API while its sidecar stops."), text("Make sure that the broker does not serve: stop it.")},
	"config/reloaded":    {text("The settings were read anew. What changed is in the detail, and in force."), text("Nothing to avoid."), nil},
	"config/refused": {text("The settings were to be read anew and cannot be used, or some need a restart. None was applied: those from before are in force."),
		text("'holdfast check' with the same settings, before the reload."), text("Mend what the detail names and run 'holdfast reload' again, or restart the sidecar to apply the rest.")},
	"agent/started": {text("The sidecar was started."), text("Nothing to avoid."), nil},
	"agent/stopped": {text("The sidecar was stopped. It held no registration, or left it in etcd to run out (--leave-registered, or an etcd that did not hear that it was given up)."), text("Nothing to avoid."), nil},
	"agent/stopped/released": {text("The sidecar was stopped, quiesced the topics and gave the registration up."), text("For a quick restart of the sidecar: --leave-registered."),
		text("Start the sidecar again. If other brokers stayed registered meanwhile, it comes back drained: holdfast activate")},
	"agent/stopped/left": {text("The sidecar was stopped while the broker was up and active. It made sure that nothing is served, noted that the broker leaves on purpose, and gave the registration up."), text("Nothing to avoid."),
		func(c Config) string {
			return "Start the sidecar and the broker within " + formatDuration(c.ReturnWithin) + " (--return-within): the broker comes back active, without an operator."
		}},
	"registration/left": {text("The broker leaves on purpose: it serves nothing any more, and that is noted in its member record. Its lease is revoked next; after the end of its process during a maintenance pause it runs out by itself."), text("Nothing to avoid."), nil},
	"fence/stopped/ill": {text("The broker did not answer for so long that its registration was not renewed any more, while another broker was well: its process was stopped, though its storage fences it. Thawed later it would serve without a registration."),
		text("Find out what made it hang. Without a way to stop it (--broker-pid-file and the like) it is left alone."), text("Start it again, if no supervisor does.")},
	"operator/leaving": {text("Somebody asked for a planned stop of the broker: 'holdfast leave', or what stops it by that."), text("Nothing to avoid."), nil},
	"operator/stays":   {text("A planned stop was taken back: the broker was not stopped in time, could not be quiesced, was drained or activated meanwhile, or etcd did not answer. The detail says which."), text("A stop of the broker soon after 'holdfast leave' (--leave-timeout)."), text("If it is still to be stopped: holdfast leave, then stop it.")},
	"registration/succeeded": {text("The broker was started again and registered itself under another id, as this kind does at each start. Within the TTL its topics were handed over from the former id in one step, so nobody else took them."),
		text("Nothing to avoid: a restart within the TTL keeps the topics."), nil},
	"registration/held": {text("The registration that was in etcd is ours and goes on."), text("Nothing to avoid."), nil},
	"agent/resumed": {text("The host was suspended. Deadlines count on the boot clock, which ran on meanwhile, so the lease was judged as soon as the host ran again."),
		text("No suspension of hosts that run brokers, or one shorter than the lease."), text("See the attachment event beside this one.")},
	"agent/clock_jumped":     {text("Somebody moved the wall clock, or the host did not run. Deadlines count on the boot clock; the next confirmed renewal settles whether the registration still stands, and nobody is sent here before."), text("A clock that is slewed, not stepped (chrony or ntpd)."), nil},
	"process/started":        {text("The sidecar started the broker."), text("Nothing to avoid."), nil},
	"process/adopted":        {text("The broker of an earlier sidecar still ran. It was taken over; no second one was started."), text("A sidecar that is not killed."), nil},
	"process/ended":          {text("The broker's process ended with 0."), text("Nothing, if that was meant."), text("See --broker-restart, which says whether it is started again.")},
	"process/failed":         {text("The broker's process ended with an error. It is started again by --broker-restart, after a growing pause."), text("The broker's own log says what failed."), text("Read the broker's log.")},
	"process/signal":         {text("The broker's process was ended by a signal. SIGKILL without an operator behind it is mostly the kernel, out of memory."), text("Memory limits that the broker fits in."), text("Look for the sender: dmesg, the container's events.")},
	"process/status_unknown": {text("A broker that an earlier sidecar had started ended; how, only its parent could have seen."), text("A sidecar that is not killed."), text("Read the broker's log.")},
	"process/fenced":         {text("The broker was stopped because its lease was about to end. It is started again as soon as etcd answers."), text("See the attachment event before this one."), nil},
	"process/held/fenced": {text("The broker is not started: its lease may be gone, and without etcd nobody can tell who took over."),
		text("A reachable etcd."), text("Bring etcd back: the broker is started then.")},
	"process/held/paused": {text("The broker ended while recovery was paused, and is not started again until the pause ends."),
		text("Nothing, if the pause was meant."), text("When the work is done: holdfast resume")},
	"process/start_failed": {text("The broker could not be started; it is tried again after a pause."), text("See the detail."), text("Mend what the detail says.")},
	"process/foreign": {text("The pid file or the process name leads to a process that is not the broker which answers: its start and the socket of the admin address say so. It is left alone."),
		text("The pid file that this very broker writes."), text("Set --broker-pid-file to it ('holdfast check' says what is wrong): until then nothing stops the broker if this sidecar hangs.")},
	"process/clean_stop": {text("The sidecar was stopped, and stopped its broker first."), text("For an upgrade of the sidecar alone: --leave-registered."), nil},
	"operator/paused": {text("An operator paused recovery: nothing is loaded, quiesced, registered again, drained or restarted until the pause ends. The lease and the fencing go on."),
		text("Nothing to avoid."), text("When the work is done: holdfast resume")},
	"operator/resumed":         {text("An operator ended the pause, and what waited went on."), text("Nothing to avoid."), nil},
	"operator/resumed/expired": {text("The time of the pause was over, and what waited went on."), text("A longer --for, or pausing again, if the work was not done."), nil},
	"registration/failing": {text("Attempts to keep or to regain the registration fail; the detail says how that counts."),
		text("A reachable etcd with a leader."), text("Check etcd ('etcdctl endpoint status') and the network between here and there.")},
	"registration/failing/auth": {text("etcd refuses this sidecar. Trying again does not help, and no session retry is used up."),
		text("A user, password or certificate that etcd accepts, with the rights on the keys below --prefix."), text("Check --etcd-user, --etcd-password-file, --etcd-cert and the user's role; a changed file is read again.")},
	"registration/failing/no_space": {text("etcd is out of space and takes no writes from anybody. No session retry is used up."),
		text("Compaction and a larger quota of etcd."), text("Compact and defragment etcd, then 'etcdctl alarm disarm'.")},
	"registration/failing/no_leader": {text("etcd has no leader, for any broker. Stopping brokers would not help, so no session retry is used up."),
		text("An etcd that keeps its quorum."), text("Look at etcd.")},
	"registration/failing/unproven": {text("etcd confirms renewals, and no read of the registration proves them: a leader whose disk hangs does so for as long as it hangs, though another one has taken over. They count for nothing."),
		text("An etcd whose members have sound disks."), text("Look at the disk of etcd's leader ('etcdctl endpoint status --cluster'), and end that member if it hangs.")},
	"registration/failing/overloaded": {text("etcd answers that it cannot keep up, for any broker. Stopping brokers would not help, so no session retry is used up."),
		text("A faster disk, or less load, for etcd."), text("Look at etcd.")},
	"agent/shutdown/session_expired": {text("The registration ended while other brokers lived on, and --session-expired-policy asks to stop the broker then."),
		func(c Config) string {
			return fmt.Sprintf("A cut shorter than %s leaves the registration in etcd with these settings; the policy drain or reconnect leaves the broker running.", formatDuration(c.Timing().SurvivesExpiry()))
		}, text("Find out what cut this host off, then start the broker and its sidecar again.")},
	"agent/shutdown/retries_used_up": {text("After the registration had run out, etcd did not answer in as many attempts as --session-retries allows."),
		text("A higher --session-retries, or 0 for no limit: the broker is fenced either way."), text("Bring etcd back, then start the broker and its sidecar again.")},
	"agent/stopped/broker_stopped": {text("The session policy ended the broker's process and this sidecar."), text("See the event before this one."), text("Start the broker and its sidecar again when the cause is gone.")},
	"agent/stopped/broker_not_stopped": {text("The session policy could not end the broker's process. Clients may still reach it."),
		text("A way to stop the broker that works: --broker-pid-file, --broker-process or --stop-command."), text("Stop the broker by hand, now.")},
	"registration/repaired": {text("The registration was bound to no lease or to a foreign one, or its bytes were not ours; it was mended in one transaction."),
		text("Nobody but Holdfast should write under /cluster/register/."), nil},
	"registration/registered":        {text("The registration was written in one transaction with the mode."), text("Nothing to avoid."), nil},
	"registration/identity_conflict": {text("Another incarnation is registered under this broker id. This sidecar changes nothing."), text("One sidecar for each broker id."), text("Stop one of the two, or wait for the other's lease to end if it is dead.")},
	"fence/quiesced":                 {text("Clients were kept away and the topics quiesced, so that nothing was served past the deadline."), text("See the attachment event before this one."), nil},
	"fence/quiesce": {text("Not every topic could be quiesced in time, or the broker did not show that it serves nothing. The next step of the ladder follows at once."), text("A broker that answers its admin API."),
		text("If no event says that it was quiesced or stopped after this one: stop the broker by hand; --broker-pid-file, --broker-process or --stop-command let Holdfast do it.")},
	"fence/stopped": {text("The broker could not be shown to serve nothing, so its process was stopped before the deadline."), text("A broker that answers its admin API: it is quiesced and runs on."),
		text("Look at the broker's own log, and start it unless a supervisor does. It is fenced again until it is attached.")},
	"fence/stop":     {text("The broker's process is not proven to have ended. It is tried again every second."), text("A pid file, process name or stop command that leads to the broker."), text("Stop the broker by hand.")},
	"fence/gone":     {text("The broker's process had ended, so there was nothing to fence."), text("See the broker events before this one."), nil},
	"fence/awaiting": {text("The broker does not answer, so nothing can be proven about it, and there is no way to stop its process. It is fenced as soon as it answers."), text("--broker-pid-file, --broker-process or --stop-command let Holdfast stop a broker that hangs."), text("If the broker hangs and did not just end: stop it by hand.")},
	"broker/all_ill": {text("The broker lives and does not answer, and so do the other brokers: what they depend on is the likely cause. To stop one of them, or to give its topics to another, would mend nothing, so each keeps its registration, unready."),
		text("A dependency of the brokers (storage, disk, network) that does not fail for all of them at once."), text("Look at what all brokers depend on. The broker is ready again by itself when it answers.")},
	"broker/alone": {text("The broker lives and does not answer, and no other broker with a sidecar is registered that could take over. It keeps its registration, unready."),
		text("A second broker: beside one that is well, a broker that hangs loses its registration and is stopped where that is allowed."), text("Look at the broker; if it does not come to itself, restart it.")},
	"broker/none_known_well": {text("The broker lives and does not answer, and no other broker is known to be well: their member records do not say so, as those of older sidecars do not, or their leases do not rise. It keeps its registration, unready."),
		text("Sidecars of one version, and the right to read the member records and leases of others."), text("Look at the other brokers, then at this one; if it does not come to itself, restart it.")},
	"broker/peer_well": {func(c Config) string {
		return "The broker lives and does not answer, while another broker says that it is well and renews its lease. So the fault is here: its registration runs out, and at the fence point " + illAtFencePoint(c) + "."
	}, text("A broker that answers its health checks."), func(c Config) string {
		next := "Look at the broker's own log. It comes back by itself if it answers before the fence point."
		if c.onlyUnready() && !c.CanStop() {
			next += " Nothing here stops its process: if it goes on hanging, restart it."
		}
		return next
	}},
	"broker/hold_over": {text("The broker answers again, or its process has ended, or its registration is not surely held any more. What comes next follows from that."), text("Nothing to avoid."), nil},
	"broker/stale_view": {text("What the broker believes of its assignments has differed from etcd for longer than 10 s, in one topic at least, at two lists of its topics: its watches of etcd have died, as they do after an interruption. It serves what it had, and learns of no change."), text("A shorter interruption of etcd, or a broker that watches again after one."),
		text("Restart the broker. Nothing is fenced for this: its registration decides whether it may serve.")},
	"broker/view_cleared": {text("The broker's view agrees with etcd again, or the broker is another process."), text("Nothing to avoid."), nil},
	"steer/active":        {text("The broker has a mode of its own and has taken active: topics may follow."), text("Nothing to avoid."), nil},
	"steer/drained":       {text("The broker has a mode of its own and has taken drained: it takes no topic and gave up those that it had."), text("See the mode event before this one."), nil},
	"steer/failing": {text("The broker was told its mode and did not take it. It is told again with growing pauses, for as long as that stays its mode; until it is active no client comes."),
		text("A broker that answers its admin API, and whose cluster has another one to take its topics."), text("See the detail and the broker's own log.")},
	"readiness/steer": {text("The broker has a mode of its own and has not taken active yet. Clients wait for it."), text("See the steer events."), nil},
	"shadow/steer":    {text("The broker would have been told to be in this mode. It was not touched (--shadow)."), text("Nothing to avoid."), nil},
	"shadow/register": {text("With --shadow nothing is written: the registration is only supposed to stand, under a lease on which no key hangs."), text("Nothing to avoid."), nil},
	"shadow/rebind":   {text("The registration would have been bound to a lease that this sidecar renews, or mended. Nothing was written (--shadow)."), text("Nothing to avoid."), nil},
	"shadow/set_mode": {text("The mode would have been written to etcd. It is only supposed (--shadow)."), text("Nothing to avoid."), nil},
	"shadow/stop":     {text("The broker could not be shown to serve nothing, or the session policy asks for it: its process would have been stopped. It runs on (--shadow)."), text("See the events before this one."), nil},
	"shadow/load":     {text("These topics would have been loaded. The broker was not touched (--shadow)."), text("Nothing to avoid."), nil},
	"shadow/quiesce":  {text("These topics would have been quiesced. The broker was not touched (--shadow)."), text("See the events before this one."), nil},
	"shadow/unload":   {text("These topics would have been unloaded. The broker was not touched (--shadow)."), text("See the events before this one."), nil},
	"shadow/revoke":   {text("The registration would have been given up. Only the shadow's own lease was."), text("Nothing to avoid."), nil},
	"fence/guard_fired": {
		func(c Config) string {
			return guardMoment(c) + " The sidecar had moved that moment no further when it came, so the guard stopped the broker: the sidecar was frozen, killed or starved. Held by SIGSTOP: somebody started the broker again meanwhile, and it did not run before the sidecar did."
		},
		text("Enough CPU and memory for the sidecar, and nobody who stops it with SIGSTOP or kills it for longer than most of a TTL."),
		func(c Config) string {
			return "See that the sidecar runs, then start the broker again unless its supervisor does. If etcd declared it dead meanwhile, " + comesBack(c) + "."
		}},
	"guard/started":    {text("The guard stands by: a second process that stops the broker if this one cannot."), text("Nothing to avoid."), nil},
	"guard/taken_over": {text("An earlier sidecar left its guard. Its word stays in force until the first confirmed renewal."), text("Nothing to avoid."), nil},
	"guard/died":       {text("The guard ended without a reason that we know of; another was started at once."), text("Nobody should kill it; it needs 4 MB of memory."), text("Look for the kernel's out-of-memory messages.")},
	"readiness/guard":  {text("The guard of the broker's process does not stand by yet. Clients wait for it, at most 5 s."), text("Nothing to avoid: each process of the broker gets a guard of its own."), nil},
	"guard/absent":     {text("No guard stood by within 5 s, so the broker is served without one: keeping clients away for want of it would be an outage of its own."), text("See the guard event before this one."), text("Mend what that says; until then nothing stops the broker if the sidecar dies or hangs.")},
	"guard/dismissed":  {text("An earlier sidecar left its guard, and this one runs with --guard off: nothing would have told it of renewals."), text("Nothing to avoid."), nil},
	"guard/failing":    {text("No guard can be started, so nothing stops the broker if the sidecar dies or hangs."), text("See the detail."), text("Mend what the detail says, or set --guard off knowingly.")},
	"topics/mass_change": {text("More topics lost their assignment at once than is believable, so none of them was quiesced."),
		text("A larger --mass-change-share, if such moves are usual."), text("If the change was meant: holdfast confirm. If not: restore the assignments.")},
	"topics/guard_cleared": {text("The assignments came back, or an operator confirmed the change."), text("Nothing to avoid."), nil},
	"topics/made_anew": {text("The broker served these topics before, on this data, and did not have them any more: it could not recover them, as after a damaged or removed folder, or somebody has deleted them by hand. They are assigned here, so they were made again, empty and without consumers."),
		text("Take the assignment away before a topic is deleted. Keep the broker's storage whole: its own log of the start says what it could not recover."),
		text("Read the broker's log of its start. If the data can be restored, drain the broker, stop it and restore it; consumers that were not made by their clients are to be made again.")},
	"topics/complete":     {text("Every assigned topic is served."), text("Nothing to avoid."), nil},
	"topics/load-timeout": {text("Some topics did not load for --load-timeout, and the others need not wait any longer."), text("See the errors in 'holdfast topics'."), text("holdfast topics --state missing")},
	"agent/unstoppable": {text("This broker must be stopped when its registration goes, nothing here could stop it in time, and --i-know lets it run all the same."),
		text("A way to stop its process that the guard can use too: --broker-pid-file, --broker-process, --stop-command or '-- CMD'."), text("Mend what the detail says, and leave out --i-know.")},
	"agent/state_saved":   {text("The state directory can be written again, and holds all that happened meanwhile."), text("Nothing to avoid."), nil},
	"agent/state_unsaved": {text("The state directory could not be written. Nothing changes now; a restarted sidecar would know less."), text("Free space on the state directory's disk."), text("Free space, or make the directory writable.")},
}

// explain says why an event came, what would have avoided it, and what to do.
func explain(e Event, c Config) Explanation {
	x := Explanation{Event: e, Why: "The state of this sidecar changed as the event says.", Avoid: "Nothing to avoid.", Otherwise: e.Otherwise}
	if e.Kind == "boot" {
		e.Kind = "mode" // the boot event carries the reason of the mode that followed
	}
	if x.Otherwise == "" && e.Kind == "mode" { // told by the event before, or of an older version
		x.Otherwise = recovery.Otherwise(recovery.Reason(cmp.Or(e.Row, e.Reason)))
	}
	for _, word := range []string{e.Row, e.To + "/" + e.Reason, e.Reason, e.To} {
		known, ok := explanations[e.Kind+"/"+word]
		if c.Unleased() {
			if other, differs := unleasedExplanations[e.Kind+"/"+word]; differs {
				known = other
			}
		}
		if !ok || word == "" {
			continue
		}
		x.Why, x.Avoid = known.why(c), known.avoid(c)
		if known.next != nil {
			x.Next = known.next(c)
		}
		if e.Shadow {
			x.Why = "Nothing was done (--shadow). Without it: " + x.Why
		}
		return x
	}
	if e.Kind == "mode" {
		x.Why = "An operator, or another program, set the mode; its word is final."
		if e.To != string(recovery.Active) {
			x.Next = "When the work is done: holdfast activate"
		}
	}
	return x
}
