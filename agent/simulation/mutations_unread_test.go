package simulation

func init() { mutations = append(mutations, unreadMutations...) }

// unreadMutations break what becomes of records in etcd that cannot be read.
var unreadMutations = []mutation{
	{name: "a member record of ours that cannot be read excuses nothing", rule: "rule 10", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"agent/registrar_unread.go", "u.Record = ", "_ = "}}},
	{name: "a note that cannot be read excuses nothing", rule: "rule 10", test: "./recovery ^TestWhoCanOnlyBeExcusedByWhatCannotBeReadIsDrained$",
		edits: []edit{{"recovery/unread.go", "if f.Left != nil && f.Left.Unread != \"\" {", "if false {"}}},
	{name: "an era that cannot be read drains whom it does not concern", rule: "rule 12", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"agent/registrar_unread.go", "if seen.EraUnsure != \"\" {", "if seen.Era.Unread != \"\" {"}}},
	{name: "an era is sure although a record that would tell it cannot be read", rule: "rule 10", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"cluster/era.go", "\t\ts.EraUnsure = unsure\n", ""}}},
	{name: "until when the fleet was alive cannot be read, so it was not", rule: "rule 10", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"agent/registrar_era.go", "if seen.Era.Unread != \"\" && ", "if false && "}}},
	{name: "a fleet that outlived a broker is forgotten when its record cannot be read", rule: "rule 10", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"agent/registrar_era.go", "\t\tf.Ours = r.wasAlive(seen, now.memory)\n\tcase", "\t\treturn nil\n\tcase"}}},
	{name: "an era that cannot be read is written over beside others", rule: "rule 5", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"cluster/era.go", "req.Alive != nil && seen.Unread == \"\"", "req.Alive != nil"}}},
	{name: "an era that cannot be read begins anew from nothing", rule: "startup", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"cluster/era.go", "\t\ts.Era.N = s.Member.Era\n", ""}, {"cluster/era.go", "s.Era.N = max(s.Era.N, m.Era)", ""}}},
	{name: "a member record that cannot be read stays beside a registration that stands", rule: "rule 10", test: "./agent ^TestARecordThatCannotBeReadConcernsWhomOnlyItCouldExcuse$",
		edits: []edit{{"agent/data.go", "case seen.MemberMalformed != \"\", ", "case "}}},
	{name: "a peer whose record cannot be read is dead", rule: "rule 10", test: "./agent ^TestAPeerWhoseRecordCannotBeReadCountsNeitherAsAliveNorAsDead$",
		edits: []edit{{"agent/registrar_life.go", "case there && m == nil:", "case there && m == nil && false:"}}},
	{name: "a number out of range is an era", rule: "rule 10", test: "./cluster ^TestAnEraThatCannotBeReadIsNamedWithItsKey$",
		edits: []edit{{"cluster/era.go", " || *v.Era > mostEra ||", " ||"}}},
	{name: "an era of a newer version is read as one of this", rule: "rule 10", test: "./cluster ^TestAnEraThatCannotBeReadIsNamedWithItsKey$",
		edits: []edit{{"cluster/era.go", " || v.Format > recordFormat {", " {"}}},
	{name: "who waits for its broker reads all member records each time", rule: "cost", test: "./agent ^TestABrokerThatRegistersItselfLooksAtAllMemberRecordsOnceAStart$",
		edits: []edit{{"cluster/era.go", "case s.Registration == nil && waits:", "case false:"}}},
	{name: "who stands by its registration reads all member records each time", rule: "cost", test: "./agent ^TestABrokerThatRegistersItselfLooksAtAllMemberRecordsOnceAStart$",
		edits: []edit{{"cluster/era.go", "case s.Registration != nil && s.Member != nil && ", "case false && "}}},
}
