package simulation

func init() { mutations = append(mutations, eraMutations...) }

// eraMutations break how a restart of all is told from a cluster that lived on and restarted later.
var eraMutations = []mutation{
	{name: "an era that grew launders who was dead before", rule: "startup", test: "./recovery ^TestAnEraThatGrewAfterTheFleetOutlivedUsIsNoRestartOfAll$",
		edits: []edit{{"recovery/verdict.go", "case f.Outlived != \"\":", "case false:"}}},
	{name: "who died within two TTLs of the fleet is dead", rule: "startup", test: "./recovery ^TestOnlyAFleetThatOutlivedUsForTwoTTLsDeclaredUsDead$",
		edits: []edit{{"recovery/era.go", "&& f.gap() > 2*f.TTL", "&& f.gap() > 0"}}},
	{name: "a life in our future is believed", rule: "startup", test: "./recovery ^TestOnlyAFleetThatOutlivedUsForTwoTTLsDeclaredUsDead$",
		edits: []edit{{"recovery/era.go", " && !f.Fleet.Until.After(f.Now) &&", " &&"}}},
	{name: "a clock that is ahead outlives its fleet", rule: "startup", test: "./agent/simulation ^TestOnlyABrokerThatTheClusterOutlivedIsDrainedAfterARestartOfAll$",
		edits: []edit{{"recovery/era.go", "return f.suspect() && f.Fleet.Revision > f.Ours.Revision", "return f.suspect()"}, {"recovery/era.go", "if !f.AsksStore() || f.Stood ||", "if !f.AsksStore() ||"}}},
	{name: "a registration that stood is taken for gone", rule: "startup", test: "./agent ^TestAClusterThatLivedOnAndRestartedLaterHasDeclaredABrokerDead$",
		edits: []edit{{"agent/registrar_era.go", "f.Stood, f.Forgotten = stood, ", "f.Stood, f.Forgotten = stood && false, "}}},
	{name: "two clocks decide what etcd has forgotten", rule: "startup", test: "./recovery ^TestAClockThatIsFiveMinutesWrongOutlivesNobodyInAStoreThatHasForgotten$",
		edits: []edit{{"recovery/era.go", " || f.Forgotten && f.gap() <= 2*f.TTL+2*clockError {", " {"}}},
	{name: "a life at a revision that is to come is asked for", rule: "startup", test: "./agent ^TestAClusterThatLivedOnAndRestartedLaterHasDeclaredABrokerDead$",
		edits: []edit{{"agent/registrar_era.go", " || f.Fleet.Revision > seen.Revision {", " {"}}},
	{name: "nobody says until when the fleet was alive", rule: "startup", test: "./agent ^TestWhoKnowsOfALongerLifeOfTheFleetSaysSo$",
		edits: []edit{{"agent/registrar.go", ", Alive: r.aliveNote(seen, now.memory),", ","}}},
	{name: "a whole fleet writes the era", rule: "startup", test: "./agent ^TestAClusterThatStartsAtOnceLooksTwiceAtMost$",
		edits: []edit{{"recovery/era.go", "least = known.Add(f.TTL)", "least = known"}}},
	{name: "who lost its registration in this era says that the one before lived on", rule: "startup", test: "./agent ^TestWhoKnowsOfALongerLifeOfTheFleetSaysSo$",
		edits: []edit{{"agent/registrar_era.go", "seen.Member.Era < seen.Era.N {", "seen.Member.Era <= seen.Era.N {"}}},
	{name: "what was known of the fleet is lost with the next era", rule: "startup", test: "./agent ^TestWhoKnowsOfALongerLifeOfTheFleetSaysSo$",
		edits: []edit{{"cluster/era.go", "\tif req.Alive != nil {\n\t\talive = *req.Alive\n\t}\n", ""}}},
}
