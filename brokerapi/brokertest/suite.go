package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
)

// Run runs the whole suite as subtests of t.
func Run(t *testing.T, h Harness) {
	if h.Many == 0 {
		h.Many = 2000
	}
	for _, c := range []struct {
		claim string
		test  func(*testing.T, Harness)
	}{
		{"IdentityIsStableAndANewInstanceAfterARestart", identity},
		{"HealthFailsWhenKilledAndReturns", healthWhenKilled},
		{"HealthFailsWhenFrozenAndReturns", healthWhenFrozen},
		{"ADriverOpenedBeforeTheBrokerStartsFindsIt", openedFirst},
		{"ALoadedTopicServes", loadedServes},
		{"LoadingWhatIsLoadedChangesNothing", loadTwice},
		{"ConcurrentLoadsOfOneTopicAllSucceed", concurrentLoads},
		{"AParkedTopicRefusesProducersAndKeepsItsData", quiesced},
		{"AWithdrawnTopicStopsServingAndKeepsItsData", unloaded},
		{"ToWithdrawAnAbsentTopicDoesNothing", absent},
		{"OddNamesLoadServeAndAreListed", oddNames},
		{"ForeignTopicsAreNeitherListedNorTouched", foreign},
		{"WhatCannotBeReadVoidsNoList", litter},
		{"ManyTopicsAreAllListed", manyTopics},
		{"TopicsServeAgainAfterARestart", servesAfterRestart},
		{"DrainedServesNothingAndActiveServesAgain", steered},
		{"ATopicOfAnotherBrokerIsServedElsewhere", elsewhere},
		{"PeersAreOthersThatTheClusterKnows", peers},
		{"ATopicThatIsSentIsServedByAnotherBroker", sends},
		{"ABrokerThatSeesItsTopicsIsNotCalledBlind", seesItsTopics},
		{"ABrokerWhoseWatchesDiedIsCalledBlind", isBlind},
		{"AMovedTopicHasItsMessagesAndPositions", movesAll},
		{"AnEmptyTopicIsNotOneWithAMessage", sealsEmpty},
		{"ASealAndACopyOutliveARestart", sealLasts},
		{"AMoveThatIsCalledOffServesAgain", servesAgain},
		{"ActsOfAnotherMoveAreRefused", lateOnes},
		{"OnlyWhatIsSealedIsRemoved", removesSealed},
		{"ResumeRefusesWhatDoesNotFit", resumeRefuses},
		{"AComparisonFindsAnotherByte", comparesBytes},
		{"ACopyBeginsAnewAfterHalfOfOne", copiesAnew},
		{"WhatIsHereIsNotAccepted", acceptRefuses},
		{"ConsumersAtWorkAreSealedByForceOnly", sealRefusesActive},
		{"WhatIsNowhereDoesNotMove", nowhereMoves},
		{"StepsOfAMoveEndWithTheirContext", movesBounded},
		{"CallsEndWithTheirContextWhenFrozen", boundedWhenFrozen},
		{"StepsThatChangeMuchEndWithTheirContextToo", heavyBounded},
		{"CloseEndsCallsInFlight", closeEndsCalls},
	} {
		t.Run(c.claim, func(t *testing.T) { c.test(t, h) })
	}
}

func identity(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	first := identify(t, b)
	if again := identify(t, b); again.Instance != first.Instance || again.Name != first.Name || again.StartedAt != first.StartedAt {
		t.Errorf("two calls, two identities: %+v and %+v", first, again)
	}
	if h.Traits.Registers != (first.Name == "") {
		t.Errorf("a name that survives restarts is for a broker that is not named by its instance: %+v", first)
	}
	if first.Instance == "" || first.Version == "" {
		t.Errorf("instance or version is empty: %+v", first)
	}

	s.Kill(t)
	before := time.Now()
	s.Start(t)
	become(t, "healthy after the restart", answering(b))
	second := identify(t, b)
	// One second each way for brokers that tell whole seconds.
	if at := second.StartedAt; !at.IsZero() && (at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second))) {
		t.Errorf("started at %v, and it was started at %v", at, before)
	}
	if second.Instance == first.Instance {
		t.Errorf("instance %q survived a restart", second.Instance)
	}
	if second.Name != first.Name || second.DataDir != first.DataDir {
		t.Errorf("a restart changed name or data directory: %+v, then %+v", first, second)
	}
	if second.StartedAt.Before(first.StartedAt) || second.StartedAt.IsZero() != first.StartedAt.IsZero() {
		t.Errorf("the second start, %v, is before the first, %v", second.StartedAt, first.StartedAt)
	}
}

func identify(t *testing.T, b brokerapi.Broker) brokerapi.Report {
	t.Helper()
	id, err := b.Probe(soon(t))
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	return id
}

func openedFirst(t *testing.T, h Harness) {
	s := h.Launch(t)
	s.Kill(t)
	b := s.Open(t)
	t.Cleanup(func() { _ = b.Close() })
	if err := answering(b)(soon(t)); err == nil {
		t.Error("healthy without a broker")
	}
	s.Start(t)
	become(t, "healthy", answering(b))
}

func loadedServes(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	load(t, s, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	wantCount(t, s, "/default/orders", 1)
	wantTopics(t, s, b, []string{"/default/orders"}, nil)
}

func loadTwice(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	for n := range 3 {
		load(t, s, b, "/default/orders", nil)
		publish(t, s, "/default/orders")
		wantCount(t, s, "/default/orders", n+1)
	}
	wantTopics(t, s, b, []string{"/default/orders"}, nil)
}

func concurrentLoads(t *testing.T, h Harness) {
	s := h.Launch(t)
	if placed(s) {
		t.Skip("nothing is loaded: its cluster places topics as clients come")
	}
	b := open(t, s)
	load(t, s, b, "/default/parked", nil)
	topics := []string{"/default/new"}
	if h.Parks {
		if err := b.Withdraw(soon(t), "/default/parked"); err != nil {
			t.Fatal(err)
		}
		topics = append(topics, "/default/parked")
	}
	assign(t, s, topics...)
	var wg sync.WaitGroup
	for range 16 {
		for _, topic := range topics {
			wg.Go(func() {
				if err := b.Serve(soon(t), topic, nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	for _, topic := range topics {
		publish(t, s, topic)
		wantCount(t, s, topic, 1)
	}
}

func quiesced(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	if !h.Parks {
		t.Skip("what is withdrawn does not stay with the broker")
	}
	load(t, s, b, "/default/orders", nil)
	load(t, s, b, "/default/others", nil)
	publish(t, s, "/default/orders")
	for range 2 { // the second changes nothing
		if err := b.Withdraw(soon(t), "/default/orders"); err != nil {
			t.Fatalf("withdraw: %v", err)
		}
		err := s.Publish("/default/orders", []byte("too late"))
		if err == nil {
			t.Fatal("a quiesced topic took a message")
		}
		if !h.Retriable(err) {
			t.Fatalf("clients do not retry after %v", err)
		}
		wantTopics(t, s, b, []string{"/default/others"}, []string{"/default/orders"})
	}
	publish(t, s, "/default/others")
	wantCount(t, s, "/default/orders", 1)

	load(t, s, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	wantCount(t, s, "/default/orders", 2)
	wantTopics(t, s, b, []string{"/default/orders", "/default/others"}, nil)
}

func unloaded(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	if !withdraws(t, b) {
		t.Skip("it gives no topic up while it runs")
	}
	assigns := h.Traits.Places // then it, or another, may serve it again at any time
	load(t, s, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	for range 2 {
		if err := b.Withdraw(soon(t), unit(s, "/default/orders")); err != nil {
			t.Fatalf("withdraw: %v", err)
		}
		if assigns {
			continue
		}
		if err := s.Publish("/default/orders", []byte("too late")); err == nil {
			t.Fatal("an unloaded topic took a message")
		}
	}
	if assigns {
		if placed(s) {
			load(t, s, b, "/default/orders", nil)
		} else if err := b.Serve(soon(t), "/default/orders", nil); err != nil && !errors.Is(err, brokerapi.ErrElsewhere) {
			t.Fatalf("load it again: %v", err)
		}
		become(t, "served again, wherever", func(context.Context) error { return s.Publish("/default/orders", []byte("data")) })
		wantCount(t, s, "/default/orders", 2)
		return
	}
	held, err := b.Topics(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(held.Serving) > 0 {
		t.Errorf("serving %q after unloading everything", held.Serving)
	}
	load(t, s, b, "/default/orders", nil)
	publish(t, s, "/default/orders")
	wantCount(t, s, "/default/orders", 2)
}

func absent(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	if withdraws(t, b) {
		if err := b.Withdraw(soon(t), unit(s, "/default/nowhere")); err != nil {
			t.Errorf("withdraw: %v", err)
		}
	}
	wantTopics(t, s, b, nil, nil)
}

func oddNames(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	var all []string
	for _, odd := range h.Odd {
		t.Run(odd.Name, func(t *testing.T) {
			load(t, s, b, odd.Topic, odd.Record)
			load(t, s, b, odd.Topic, odd.Record)
			publish(t, s, odd.Topic)
			wantCount(t, s, odd.Topic, 1)
		})
		all = append(all, odd.Topic)
	}
	wantTopics(t, s, b, all, nil)
	if !h.Parks {
		return
	}
	for _, topic := range all {
		if err := b.Withdraw(soon(t), topic); err != nil {
			t.Errorf("quiesce %q: %v", topic, err)
		}
	}
	wantTopics(t, s, b, nil, all)
}

func foreign(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	if h.Traits.Places {
		t.Skip("a broker whose own cluster assigns the topics lists all that it serves")
	}
	unchanged := s.AddForeign(t)
	load(t, s, b, "/default/orders", nil)
	wantTopics(t, s, b, []string{"/default/orders"}, nil)
	if h.Parks {
		if err := b.Withdraw(soon(t), "/default/orders"); err != nil {
			t.Fatal(err)
		}
		wantTopics(t, s, b, nil, []string{"/default/orders"})
	}
	load(t, s, b, "/default/orders", nil)
	if err := unchanged(); err != nil {
		t.Error(err)
	}
}

// litter is safety rule 2: one entry that cannot be read never voids a list.
func litter(t *testing.T, h Harness) {
	s := h.Launch(t)
	l, ok := s.(Litterer)
	if !ok {
		t.Skip("no client makes this broker serve what is no topic")
	}
	b := open(t, s)
	load(t, s, b, "/default/orders", nil)
	l.Litter(t)
	held, err := b.Topics(soon(t))
	if err != nil || len(held.Unreadable) != 1 {
		t.Fatalf("%+v, %v", held, err)
	}
	wantTopics(t, s, b, []string{"/default/orders"}, nil)
	if err := answering(b)(soon(t)); err != nil {
		t.Errorf("healthy, and %v", err)
	}
	if st, ok := b.(brokerapi.ModeSetter); ok {
		if err := st.SetMode(soon(t), brokerapi.Drained, "conformance"); err != nil {
			t.Errorf("steer to drained: %v", err)
		}
		if after, err := b.Topics(soon(t)); err != nil || len(after.Serving) > 0 || !slices.Equal(after.Unreadable, held.Unreadable) {
			t.Errorf("drained: %+v, %v", after, err)
		}
	}
}

func manyTopics(t *testing.T, h Harness) {
	s := h.Launch(t)
	b := open(t, s)
	all := make([]string, h.Many)
	for i := range all {
		all[i] = fmt.Sprintf("/default/topic-%05d", i)
	}
	assign(t, s, all...)
	next := make(chan string)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for topic := range next {
				if p, is := s.(Placer); is {
					p.Place(t, topic)
				} else if err := b.Serve(soon(t), topic, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, topic := range all {
		next <- topic
	}
	close(next)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	half := len(all) / 2
	if !h.Parks {
		wantTopics(t, s, b, all, nil)
		return
	}
	for _, topic := range all[:half] {
		if err := b.Withdraw(soon(t), topic); err != nil {
			t.Fatal(err)
		}
	}
	wantTopics(t, s, b, all[half:], all[:half])
}

func wantTopics(t *testing.T, s Server, b brokerapi.Broker, serving, quiesced []string) {
	t.Helper()
	held, err := b.Topics(soon(t))
	if err != nil {
		t.Fatalf("list topics: %v", err)
	}
	for _, c := range []struct {
		list      string
		got, want []string
	}{{"serving", held.Serving, serving}, {"quiesced", held.Withdrawn, quiesced}} {
		got, want := slices.Sorted(slices.Values(c.got)), listed(s, c.want)
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got %d topics, want %d: %s", c.list, len(got), len(want), difference(got, want))
		}
	}
}

// difference names at most a few of the topics that are in one list only.
func difference(got, want []string) string {
	var text bytes.Buffer
	n := 0
	note := func(sign string, from, in []string) {
		for _, topic := range from {
			if _, found := slices.BinarySearch(in, topic); !found && n < 10 {
				fmt.Fprintf(&text, " %s%q", sign, topic)
				n++
			}
		}
	}
	note("+", got, want)
	note("-", want, got)
	return text.String()
}
