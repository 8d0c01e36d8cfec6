package recovery

// The rows of the tables that keep the mode that was, or give none. The other rows are named
// by the reason that they give.
const (
	RowKept        Reason = "kept"              // a drain that only a person may lift
	RowSurvived    Reason = "survived"          // an outage that the registration outlived
	RowReconnected Reason = "reconnected"       // registered again by policy, with the mode we had
	RowConflict    Reason = "identity_conflict" // another incarnation is registered
	RowAwait       Reason = "awaits_life"       // whether a peer lived on is not known yet
)

// otherwise holds, by row, what would have made it another.
var otherwise = map[Reason]string{
	ReasonBoot: "Older data in the data directory, a state file of Holdfast or a key of this broker in etcd would have made it a restart; --join would have left it drained (join).",
	ReasonJoin: "Without --join it would have been active (boot, or first_registration where it has data already).",
	ReasonFirstRegistration: "A state file of Holdfast, or a member record or state of this broker in etcd, would have made it a restart of a known broker (fast_restart, stale_restart or full_cluster_restart); " +
		"topics served that are assigned to others would have drained it (unknown_data).",
	ReasonUnknownData: "Serving nothing but what is assigned to it, it would have been active (first_registration).",
	ReasonDataMissing: "On the directory that held its data, or on another to which that was brought before the broker started, the rows below would have decided, as for any restart.",
	ReasonFastRestart: "Back after its registration would have run out, it would have been drained if other brokers lived on (stale_restart), and active if none did (full_cluster_restart).",
	ReasonPlannedRestart: "Back later than --return-within after its planned stop, or without one, it would have been judged by whether other brokers lived on: drained if they did (stale_restart), active if not (full_cluster_restart); " +
		"drained by an operator, it would have stayed so (kept).",
	ReasonStaleRestart:       "Back before its registration ended, it would have been active (fast_restart), and after a planned stop ('holdfast leave') within --return-within, too (planned_restart); so it would if no other broker had lived on meanwhile (full_cluster_restart), or if --fleet-loss-share of them had lost theirs or been cut off within two TTLs of its last renewal (fleet_expired).",
	ReasonFullClusterRestart: "Had another broker lived on all the while, or for more than two TTLs before all of them restarted, it would have been drained (stale_restart); back before its registration ended, it would have been active as well (fast_restart).",
	ReasonFleetExpired:       "Had another broker lived on all the while, and fewer than --fleet-loss-share of them lost their registrations or been cut off at the same time, --session-expired-policy would have decided; with drain, it would have been drained (registration_expired), as a broker that was restarted is (stale_restart).",
	ReasonRegistrationExpired: "Renewed within the TTL, it would have kept its registration and its mode (survived); had no other broker lived on, or --fleet-loss-share of them lost theirs or been cut off at the same time, its mode (fleet_expired); " +
		"--session-expired-policy reconnect keeps the mode as well (reconnected).",
	ReasonRestoredBackup: "Were the cluster's memory not older than what this sidecar remembers of it, the rows below would have decided, as for any restart or outage.",
	ReasonCorruptState:   "With a state file that can be read, the rows below would have decided, as for any restart or outage.",
	ReasonUnreadableMode: "With a state key that says active, draining or drained, or with none, the rows below would have decided, as for any restart or outage.",
	ReasonUnreadableRecord: "With records that can be read, it would have been judged by whether other brokers lived on: drained if they did (stale_restart, or by --session-expired-policy), active if not (full_cluster_restart, fleet_expired), " +
		"or if it had left on purpose (planned_restart).",
	RowKept:              "Activated before, by 'holdfast activate', the rows below would have decided, as for any restart or outage.",
	RowSurvived:          "Had the registration ended meanwhile, it would have been judged by whether other brokers lived on (fleet_expired, or --session-expired-policy).",
	RowReconnected:       "With --session-expired-policy drain, it would have been drained (registration_expired).",
	ReasonSessionExpired: "With --session-expired-policy drain, it would have been drained (registration_expired) and not stopped; had no other broker lived on, nothing would have happened (fleet_expired).",
	RowAwait: "Once another broker is seen to renew its lease, it will have been declared dead (stale_restart, or by --session-expired-policy); " +
		"once none is left that might, all were down (full_cluster_restart, fleet_expired).",
	RowConflict: "Once the other one is stopped and its registration has ended, this one would be judged as any other.",
}

// Otherwise says, for an operator, what would have made the row that decided another one;
// empty: the row is not known here.
func Otherwise(row Reason) string { return otherwise[row] }
