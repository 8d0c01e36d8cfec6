package simulation

func init() { mutations = append(mutations, fenceMutations...) }

// fenceMutations break what the simulation cannot play, or plays too seldom: each is for one
// test beside the rule.
var fenceMutations = []mutation{
	{name: "the boot clock stands still while the host is suspended", rule: "rule 1", test: "./agent/lease ^TestTheBootClockIsTheOneThatRunsOnWhileTheHostIsSuspended$",
		edits: []edit{{"agent/lease/validity.go", "unix.CLOCK_BOOTTIME, &ts", "unix.CLOCK_MONOTONIC, &ts"}}},
	{name: "the lease of the sidecar before counts from our own start", rule: "rule 2", test: "./agent ^TestABrokerLeftBehindIsFencedAtTheFencePointOfItsOwnLease$",
		edits: []edit{{"agent/lastrenewal.go", "\tcase a.memory.Released || now < a.former.FencePoint():\n", "\tcase true:\n"}}},
	{name: "a renewal is not noted", rule: "rule 2", test: "./agent ^TestEachConfirmedRenewalIsNotedAndSoIsALoss$",
		edits: []edit{{"agent/lastrenewal.go", "\t\ta.renewals.note(r)\n", ""}}},
	{name: "a note of another boot is believed", rule: "rule 2", test: "./agent ^TestARenewalThatIsNotedIsFoundByTheNextSidecarOfThisBoot$",
		edits: []edit{{"agent/lastrenewal.go", "case boot == \"\" || fields[0] != boot:", "case boot == \"\" && fields[0] != boot:"}}},
	{name: "what was quiesced is believed for the whole outage", rule: "fence ladder", test: "./agent ^TestWhatOtherHandsBringBackDuringAnOutageIsQuiescedAgain$",
		edits: []edit{{"agent/fence.go", "\t\tf.Look = a.settings().HealthInterval\n", ""}}},
	{name: "a proof never grows old", rule: "fence ladder", test: "./agent ^TestABrokerThatHangsAfterItWasQuiescedIsStopped$",
		edits: []edit{{"recovery/ladder.go", "!f.MustStop && !l.aged(f, ProofLooks):", "!f.MustStop:"}}},
	{name: "the guard is put off by the time that passes", rule: "dead-man guard", test: "./agent ^TestTheGuardIsPutOffByProofsAlone$",
		edits: []edit{{"agent/fence.go", "f.provenAt = lease.Instant(f.ladder.ProvenAt())", "f.provenAt = a.clock()"}}},
	{name: "the guard is put off while the ladder merely waits", rule: "dead-man guard", test: "./agent ^TestTheGuardIsNotLetGoWhileTheLadderMerelyWaits$",
		edits: []edit{
			{"agent/fence.go", "\tcase a.servesNothing():\n\t\tf.provenAt", "\tdefault:\n\t\tf.provenAt"},
			{"agent/fence.go", "at > a.clock() && a.fencing.reached.Proven() &&", "at > a.clock() &&"}}},
	{name: "the guard is tended after orders to load", rule: "dead-man guard", test: "./agent ^TestTheReconcilerIsLetLooseOnlyAfterTheGuardIsArmed$",
		edits: []edit{
			{"agent/loop.go", "\ta.tendGuard() // before the reconciler may load\n", ""},
			{"agent/loop.go", "\ta.letIn()\n\ta.orderPlacer()\n", "\ta.tendGuard()\n\ta.letIn()\n\ta.orderPlacer()\n"}}},
	{name: "the end of a session lets the guard go before the broker is stopped", rule: "dead-man guard", test: "./agent ^TestTheEndOfASessionLetsTheGuardGoOnlyWhenTheBrokerIsStopped$",
		edits: []edit{{"agent/session.go", "\thow, err := a.stopBroker()\n", "\tif a.guard != nil {\n\t\ta.guard.Disarm()\n\t}\n\thow, err := a.stopBroker()\n"}}},
	{name: "a state older than known is taken up", rule: "rule 6", test: "./agent ^TestAStateThatTheWatchBringsLateIsNotTakenUp$",
		edits: []edit{{"agent/mode.go", "\tif revision <= a.modeRev {\n\t\treturn\n\t}\n", ""}}},
	{name: "the mode is asserted while detached", rule: "rule 9", test: "./agent ^TestTheModeIsNotAssertedWhileDetached$",
		edits: []edit{{"agent/mode.go", " || a.attachment == recovery.Detached || v.Phase", " || v.Phase"}}},
	{name: "an etcd that was restored is not looked at", rule: "startup", test: "./agent ^TestAnEtcdThatWasRestoredIsLookedAt$",
		edits: []edit{{"agent/takeup.go", "if revision < a.keeper.View().Grant.Revision {", "if revision < 0 {"}}},
	{name: "the restart grace revokes while the process lives", rule: "the lease", test: "./agent ^TestTheRestartGraceRevokesNothingWhileTheProcessLives$",
		edits: []edit{{"agent/loop.go", " || a.brokerTarget().Pid != 0)", ")"}}},
	{name: "a child starts while etcd is silent", rule: "rule 2", test: "./agent ^TestAChildThatWasRegisteredMayNotStartWhileEtcdIsSilent$",
		edits: []edit{{"agent/supervise.go", "\t\treturn false, \"its lease may be gone", "\t\treturn true, \"its lease may be gone"}}},
	{name: "ready between a pause of the machine and the loop's next run", rule: "rule 1", test: "./agent ^TestNobodyIsSentHereBetweenAPauseOfTheMachineAndTheNextRenewal$",
		edits: []edit{{"agent/readiness.go", "a.view.Load().doubted || a.jumpedSinceLoop()", "a.view.Load().doubted"}}},
	{name: "loaded between a pause of the machine and the next renewal", rule: "rule 1", test: "./agent ^TestNothingIsLoadedBetweenAPauseOfTheMachineAndTheNextRenewal$",
		edits: []edit{{"agent/loop.go", " && !a.awaitsGuard() && !a.doubted()\n", " && !a.awaitsGuard()\n"}}},
	{name: "a renewal that was sent before a pause ends the doubt", rule: "rule 1", test: "./agent ^TestARenewalThatWasSentBeforeAPauseConfirmsNothing$",
		edits: []edit{{"agent/suspend.go", "a.keeper.View().Validity.SentAt >= a.doubt.since {", "a.keeper.View().Validity.Known() {"}}},
	{name: "the time that a machine was paused does not count", rule: "rule 1", test: "./agent ^TestAPausedMachineThatFindsNoEtcdFencesAfterOneAttempt$",
		edits: []edit{{"agent/attach.go", ") - a.uncounted(),", ") - 0*a.uncounted(),"}}},
	{name: "a process that was recognized is judged by a wall clock that was set", rule: "fence ladder", test: "./agent ^TestAProcessThatWasRecognizedIsKnownAfterTheWallClockWasSet$",
		edits: []edit{{"agent/recognizer.go", "before := a.recognizedBefore(t, who.Instance)", "before := false"}}},
	{name: "the stop does not wait for a judgement", rule: "fence ladder", test: "./agent ^TestTheStopWaitsForAJudgementAndNotForLong$",
		edits: []edit{{"agent/fence.go", "return asked || a.recognizer.judging()", "return asked"}}},
}
