package simulation

func init() { mutations = append(mutations, guardMutations...) }

// guardMutations take a guard from what is written with a registration. Package guardtest does
// so with each of them on a real etcd, too (lab/clustertest).
var guardMutations = []mutation{
	{name: "a registration is written over another", rule: "rule 5", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^register_beside_a_peer$",
		edits: []edit{{"cluster/register.go", "clientv3.CreateRevision(c.keys.Registration(id)), \"=\", 0)", "clientv3.CreateRevision(c.keys.Registration(id)), \">\", -1)"}}},
	{name: "what was decided in one era is written in the next", rule: "rule 5", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^register_beside_a_peer$",
		edits: []edit{{"cluster/register.go", "clientv3.ModRevision(c.keys.Era()), \"=\", req.Seen.Era.ModRevision)", "clientv3.ModRevision(c.keys.Era()), \">\", -1)"}}},
	{name: "a registration that nobody saw is kept", rule: "rule 5", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^(rewrite|join)$",
		edits: []edit{{"cluster/register.go", "clientv3.CreateRevision(key), \">\", 0)", "clientv3.CreateRevision(key), \">\", -1)"}}},
	{name: "a registration is kept that was written meanwhile", rule: "rule 5", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^(rebind|rewrite|join)$",
		edits: []edit{{"cluster/register.go", "clientv3.ModRevision(key), \"=\", seen.ModRevision)", "clientv3.ModRevision(key), \">\", -1)"}}},
	{name: "a mode is written over an operator's with a registration that is kept", rule: "rule 6", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^(rebind|rewrite|join)$",
		edits: []edit{{"cluster/register.go", "clientv3.ModRevision(c.keys.State(seen.BrokerID)), \"=\", m.StateRevision)", "clientv3.ModRevision(c.keys.State(seen.BrokerID)), \">\", -1)"}}},
	{name: "the health of a broker is noted of a registration that is another's by then", rule: "rule 13", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^note_the_health$",
		edits: []edit{{"cluster/health.go", "clientv3.ModRevision(registration), \"=\", found[0].ModRevision)", "clientv3.ModRevision(registration), \">\", -1)"}}},
	{name: "a note of health takes away what was written to the member record meanwhile", rule: "rule 13", test: "./cluster/memory ^TestEachGuardRefusesWhatNoOtherDoes$/^note_the_health$",
		edits: []edit{{"cluster/health.go", "clientv3.ModRevision(record), \"=\", m.ModRevision)", "clientv3.ModRevision(record), \">\", -1)"}}},
}
