package simulation

func init() { mutations = append(mutations, paceMutations...) }

// paceMutations take the pause out of something that is done again when it has failed.
var paceMutations = []mutation{
	{name: "a connection that comes up is news however often it does", rule: "the lease",
		edits: []edit{{"agent/lease/haste.go", "wait := max(0, time.Until(h.free))", "wait := time.Duration(0)"}}},
	{name: "a renewal that failed is repeated at once", rule: "the lease",
		edits: []edit{{"agent/lease/renew.go", "d := pause.next()", "d := 0 * pause.next()"}}},
	{name: "a registration that failed is repeated at once", rule: "the lease",
		edits: []edit{{"agent/lease/keeper.go", "k.boundPause(pause.next(), k.set.Clock())", "0*k.boundPause(pause.next(), k.set.Clock())"}}},
	{name: "what could not be listed is listed again at once", rule: "the lease",
		edits: []edit{{"cluster/follow.go", "pause = min(2*pause, followMax)", "pause = time.Millisecond"}}},
	{name: "a watch that begins starts the pauses over", rule: "the lease", test: "./cluster ^TestWatchesThatEndAsSoonAsTheyBeganAreNotListedAgainAndAgain$",
		edits: []edit{{"cluster/follow.go", "if watching && time.Since(began) > followMax {", "if watching && began != (time.Time{}) {"}}},
	{name: "locks that cannot be asked for are asked for again at once", rule: "the lease", test: "./recovery ^TestAStoreErrorIsNotAnAbsentLock$",
		edits: []edit{{"recovery/ownership_calls.go", "now.Add(backoff(c.failures, maxLockBackoff)), err.Error()", "now, err.Error()"}}},
	{name: "a state key that etcd refuses is written again at once", rule: "the lease", test: "./agent ^TestAStateKeyThatEtcdRefusesIsWrittenAgainAtAPace$",
		edits: []edit{{"agent/mode.go", " || a.clock() < a.assertFrom ||", " ||"}}},
	{name: "who never rests is answered at once", rule: "the lease", test: "./agent/lease ^TestAWriterWhoDoesNotRestIsAnsweredAtAPace$",
		edits: []edit{{"agent/lease/haste.go", " && !time.Now().Before(k.asks.free)\n", "\n"}}},
	{name: "what is wished right after a storm waits for a renewal", rule: "the lease", test: "./agent/lease ^TestAWishRightAfterAStormIsGrantedWithinASecond$",
		edits: []edit{{"agent/lease/keeper.go", "stop := k.wakeWhenFree()", "stop := func() {}"}}},
	{name: "each question that failed begins a series of its own", rule: "the lease", test: "./agent/lease ^TestQuestionsThatFailWhileTheLeaseIsHeldDoNotAddUp$",
		edits: []edit{{"agent/lease/keeper.go", "k.again.Stop() //", "//"}}},
}
