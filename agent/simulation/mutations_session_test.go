package simulation

func init() { mutations = append(mutations, sessionMutations...) }

// sessionMutations break what becomes of the session of a broker that registers itself.
var sessionMutations = []mutation{
	{name: "a lost session is followed by one of ours", rule: "rule 2", test: "./agent ^TestALostSessionIsGrantedAgainUnderItsID$",
		edits: []edit{{"agent/registrar.go", "if r.joins() {\n\t\tgrant, free, err = r.resume", "if r.joins() && false {\n\t\tgrant, free, err = r.resume"}}},
	{name: "the locks of a lost session are not put again", rule: "rule 2", test: "./agent ^TestALostSessionIsGrantedAgainUnderItsID$",
		edits: []edit{{"agent/registrar_session.go", `if r.cfg.OwnershipLocks != "on" || len(free) == 0 {`, `if r.cfg.OwnershipLocks == "on" || len(free) == 0 {`}}},
	{name: "a broker whose topic another has is registered again", rule: "rule 2", test: "./agent ^TestABrokerWhoseTopicsAnotherHasTakenIsNotRegisteredAgain$",
		edits: []edit{{"agent/registrar_session.go", "if len(taken) > 0 {", "if len(taken) > 1 {"}}},
	{name: "who holds a topic is not looked at again after a grant", rule: "rule 2", test: "./agent ^TestWhoHoldsATopicIsLookedAtForEachTry$",
		edits: []edit{{"agent/registrar_session.go", "r.regranted = id\n", ""}, {"agent/registrar_join.go", " || r.regranted == m.LeaseID {", " {"}}},
	{name: "a broker that does not list its topics has none", rule: "rule 9", test: "./agent ^TestASessionIsNotGrantedAgainWhileItIsNotKnownWhatTheBrokerServes$",
		edits: []edit{{"agent/registrar_session.go", "serving, err := r.listed(ctx, r.holds, now.instance)\n\tif err != nil {", "serving, err := r.listed(ctx, r.holds, now.instance)\n\tif err != nil && len(serving) > 0 {"}}},
	{name: "the broker's session is given back with a refused write", rule: "rule 2", test: "./agent ^TestASessionThatLivesIsNotEndedByTheWriteOfItsRegistration$",
		edits: []edit{{"agent/registrar.go", "case r.joins(): // the lease is the broker's", "case r.joins() && false: // the lease is the broker's"}}},
	{name: "the next session of a process is a loss", rule: "rule 12", test: "./agent ^TestTheNextSessionOfTheSameProcessIsNoLoss$",
		edits: []edit{{"agent/registrar_join.go", "|| reg.CreateRevision == m.Epoch ||", "|| m.Instance == now.instance ||"}}},
	{name: "a broker is told to unload what it cannot give up", rule: "rule 13", test: "./recovery ^TestWhatTheBrokerServesIsOwnedAgainAfterALoss$",
		edits: []edit{{"recovery/ownership_loop.go", "case c.Foreign():\n\t\t\tc = ClaimStuck\n", ""}, {"recovery/ownership_loop.go", "case !o.settings.Served:\n", "case !o.settings.Served || c.Foreign():\n"}}},
	{name: "a lock of the broker's earlier session is written", rule: "rule 13", test: "./recovery ^TestWhatTheBrokerServesIsOwnedAgainAfterALoss$",
		edits: []edit{{"recovery/ownership_served.go", "step == LockWait, step == LockRebind:", "step == LockWait:"}}},
	{name: "a lock that the broker may be about to write is taken", rule: "rule 13", test: "./recovery ^TestWhatTheBrokerServesIsOwnedAgainAfterALoss$",
		edits: []edit{{"recovery/ownership_loop.go", "step == LockTake && now.Before(at)", "step == LockTake && now.Before(at) && false"}}},
}
