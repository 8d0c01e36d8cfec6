package simulation

func init() { mutations = append(mutations, illMutations...) }

// illMutations are of what becomes of brokers that are ill, and of active ones that are kept out
// of their cluster's choice (rule 13).
var illMutations = []mutation{
	{name: "a broker that is ill is let go though nobody is well", rule: "rule 13", test: "./agent ^TestABrokerThatIsIllIsHeldUnlessAPeerIsWell$",
		edits: []edit{{"agent/loop.go", " || a.illness.held() != \"\"", ""}}},
	{name: "a broker that is ill is held beside a well peer", rule: "rule 13", test: "./recovery ^TestABrokerThatIsIllLosesItsRegistrationOnlyBesideAWellPeer$",
		edits: []edit{{"recovery/illness.go", "\tcase o.Well != \"\":\n", "\tcase o.Well == \"nobody\":\n"}}},
	{name: "a record that says well is believed without a lease that rises", rule: "rule 13", test: "./recovery ^TestAPeerIsWellOnlyWhileItSaysSoAndItsLeaseRises$",
		edits: []edit{{"recovery/illness.go", "} else if rose(before, s) {", "} else {"}}},
	{name: "a lease that once rose counts for ever", rule: "rule 13", test: "./recovery ^TestAPeerIsWellOnlyWhileItSaysSoAndItsLeaseRises$",
		edits: []edit{{"recovery/illness.go", "case risen && now-at <= s.Granted/4:", "case risen && now-at >= 0:"}}},
	{name: "a lease that a new leader lifted rises", rule: "rule 13", test: "./recovery ^TestAPeerIsWellOnlyWhileItSaysSoAndItsLeaseRises$",
		edits: []edit{{"recovery/illness.go", "w.first == nil || term != w.term", "w.first == nil"}}},
	{name: "who says nothing of its health is well", rule: "rule 13", test: "./recovery ^TestAPeerIsWellOnlyWhileItSaysSoAndItsLeaseRises$",
		edits: []edit{{"recovery/illness.go", "case s.Health != HealthWell || !s.told():", "case !s.told():"}}},
	{name: "the others are looked at before they can have noticed", rule: "rule 13", test: "./agent ^TestNobodyLooksAtTheOthersBeforeTheLossIsNear$",
		edits: []edit{{"recovery/illness.go", "\t\treturn fencePoint - LooksFrom(renewal)\n", "\t\treturn fencePoint / 2\n"}}},
	{name: "a broker that has ended is held", rule: "rule 13", test: "./agent ^TestABrokerThatHasEndedIsNotHeld$",
		edits: []edit{{"agent/illness.go", " && a.everAttached && !a.brokeSinceUp()", " && a.everAttached"}}},
	{name: "a broker is held past the deadline", rule: "rule 2", test: "./recovery ^TestABrokerThatIsIllLosesItsRegistrationOnlyBesideAWellPeer$",
		edits: []edit{{"recovery/illness.go", "case !f.Ill || !f.Held:", "case !f.Ill:"}}},
	{name: "the member record does not say that the broker is ill", rule: "rule 13", test: "./agent ^TestTheMemberRecordSaysWellOrIllWhenItChanges$",
		edits: []edit{{"agent/illness_note.go", "\t\th.now = cluster.HealthIll\n", ""}}},
	{name: "the health is noted as often as it changes", rule: "rule 13", test: "./agent ^TestTheMemberRecordSaysWellOrIllWhenItChanges$",
		edits: []edit{{"agent/illness_note.go", " || a.clock() < h.next {", " {"}}},
	{name: "a drained broker is said to be well", rule: "rule 13", test: "./agent ^TestTheMemberRecordSaysAwayOfABrokerThatIsDrained$",
		edits: []edit{{"agent/illness_note.go", "\t\th.now = cluster.HealthAway\n", "\t\th.now = cluster.HealthWell\n"}}},
	{name: "who renews its own lease is held though others may be well", rule: "rule 13", test: "./recovery ^TestABrokerThatIsIllLosesItsRegistrationOnlyBesideAWellPeer$",
		edits: []edit{{"recovery/illness.go", "case f.KeepsItself && (o.Ill == 0 || o.Silent > 0):", "case f.KeepsItself && o.Ill < 0:"}}},
	{name: "records of brokers that have gone hide a peer that is well", rule: "rule 13", test: "./cluster ^TestPeersThatLiveAreFoundBehindTheRecordsOfThoseThatHaveGone$",
		edits: []edit{{"cluster/health.go", "if len(list) >= MostPeers || len(seen) == len(registered) {", "if len(keys) > 0 {"}}},
	{name: "a broker whose work was not tried is said to be ill", rule: "rule 13", test: "./agent ^TestTheMemberRecordSaysNothingOfABrokerWhoseWorkWasNotTried$",
		edits: []edit{{"agent/illness_note.go", "case verdict == probes.Up && a.work.untried():", "case a.work == nil && a.work.untried():"}}},
	{name: "the work of one process of the broker is that of the next", rule: "rule 13", test: "./agent ^TestATryOfTheProcessBeforeIsNoneOfThisOne$",
		edits: []edit{{"agent/work.go", "w.last.Store(&tried{})", "w.last.Store(nil)"}}},
	{name: "a policy that is on its way keeps an active broker away", rule: "rule 13", test: "./brokerapi/pulsar ^TestAPolicyThatIsOnItsWayIsRemovedWhenTheBrokerIsActivated$",
		edits: []edit{{"brokerapi/pulsar/away.go", "context.WithDeadline(context.WithoutCancel(ctx), until)", "context.WithDeadline(ctx, until)"}}},
	{name: "a note of health makes a registration anybody's", rule: "startup", test: "./agent ^TestTwoBrokersOfOneNameDoNotTakeFromEachOther$",
		edits: []edit{{"cluster/health.go", "\t\tm.Bound = m.ModRevision\n", ""}}},
}
