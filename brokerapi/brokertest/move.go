package brokertest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"holdfast/recovery/moves"
)

func movesAll(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one", "two", "three")
	from.wantNext(t, moved, "one", "two")
	from.fill(t, "/default/stays", "other")
	planned, err := from.Extent(soon(t), moved)
	if err != nil || planned.Empty || planned.Count != 3 {
		t.Fatalf("it stands at %+v, %v", planned, err)
	}
	if err := to.Accept(soon(t), moved, nil, planned, from.Peer()); err != nil {
		t.Fatalf("accept: %v", err)
	}
	wantTopics(t, to, to.broker, nil, nil)
	sealed := from.seal(t, h, moved, move)
	to.copy(t, moved, move, from, sealed)
	if now, err := from.Extent(soon(t), moved); err != nil || !same(now, sealed) {
		t.Fatalf("the source stands at %+v, %v, sealed was %+v", now, err, sealed)
	}
	assign(t, to, moved)
	to.resume(t, moved, move, &sealed)
	wantCount(t, to, moved, 3)
	from.refusesClients(t, h, moved)
	if err := to.Publish(moved, []byte("four")); err != nil {
		t.Fatalf("publish after resume: %v", err)
	}
	to.wantNext(t, moved, "three", "four")
	if got, err := to.Resume(soon(t), moved, move, nil, &sealed); err != nil || got.Empty || got.Last < sealed.Last {
		t.Fatalf("resumed once more when it had gone on: %+v, %v", got, err)
	}
	got, err := to.Compare(soon(t), moved, from.Peer(), sealed, free)
	if err != nil || got.Differs != "" || got.Observed == "" && got.Compared+got.Gone != 3 {
		t.Fatalf("compared: %+v, %v", got, err)
	}
	for range 2 {
		if err := from.Remove(soon(t), moved, move); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	wantTopics(t, from, from.broker, []string{"/default/stays"}, nil)
	wantTopics(t, to, to.broker, []string{moved}, nil)
	wantCount(t, to, moved, 4)
	wantCount(t, from, "/default/stays", 1)
	if n, err := from.Count(moved); err == nil && n != 0 {
		t.Errorf("%d messages at the source after they were removed", n)
	}
	to.resume(t, moved, "m2", nil) // another move, called off before it sealed
	back := to.seal(t, h, moved, "m3")
	from.copy(t, moved, "m3", to, back)
	assign(t, from, moved)
	from.resume(t, moved, "m3", &back)
	if err := from.Publish(moved, []byte("five")); err != nil {
		t.Fatalf("publish after it came back: %v", err)
	}
	from.wantNext(t, moved, "five")
}

func sealsEmpty(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved)
	from.fill(t, "/default/single", "one")
	none, one := from.seal(t, h, moved, move), from.seal(t, h, "/default/single", move)
	if !none.Empty || none.Count != 0 {
		t.Errorf("without a message sealed at %+v", none)
	}
	if one.Empty || one.Count != 1 {
		t.Errorf("with one message sealed at %+v", one)
	}
	for topic, sealed := range map[string]moves.Extent{moved: none, "/default/single": one} {
		to.copy(t, topic, move, from, sealed)
		assign(t, to, topic)
		to.resume(t, topic, move, &sealed)
		publish(t, to, topic)
	}
	wantCount(t, to, moved, 1)
	wantCount(t, to, "/default/single", 2)
}

func sealLasts(t *testing.T, h Harness) {
	from, to, sealed := copied(t, h, 2, "one", "two", "three")
	for _, e := range []*end{from, to} {
		e.Kill(t)
		e.Start(t)
		become(t, "healthy after the restart", answering(e.broker))
		if now, err := e.Extent(soon(t), moved); err != nil || !same(now, sealed) {
			t.Fatalf("sealed at %+v, and after a restart at %+v, %v", sealed, now, err)
		}
		e.refusesClients(t, h, moved)
	}
	if again, err := from.Seal(soon(t), moved, move, false); err != nil || !same(again, sealed) {
		t.Fatalf("sealed at %+v, and after a restart at %+v, %v", sealed, again, err)
	}
	to.resume(t, moved, move, &sealed)
	to.wantNext(t, moved, "three")
}

func servesAgain(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one", "two", "three")
	from.resume(t, moved, "m1", nil) // the seal was never begun
	from.wantNext(t, moved, "one")
	from.seal(t, h, moved, "m2")
	from.resume(t, moved, "m2", nil) // its answer was lost
	from.wantNext(t, moved, "two")
	_, err := from.Seal(soon(t), moved, "m2", false)
	wantRefused(t, "seal what this move has resumed", err)
	sealed := from.seal(t, h, moved, "m3")
	to.copy(t, moved, "m3", from, sealed)
	from.resume(t, moved, "m3", &sealed)
	publish(t, from, moved)
	from.wantNext(t, moved, "three", "data")
	for range 2 {
		if err := to.Remove(soon(t), moved, "m3"); err != nil {
			t.Fatalf("remove the copy: %v", err)
		}
	}
	wantTopics(t, to, to.broker, nil, nil)
	wantTopics(t, from, from.broker, []string{moved}, nil)
	from.seal(t, h, moved, "m4") // and no journal is left of it
	load(t, from, from.broker, moved, nil)
	publish(t, from, moved)
	if e, err := from.Extent(soon(t), moved); err != nil || !e.Served {
		t.Errorf("what was loaded while it was sealed stands at %+v, %v: want served, so that it is not handed over", e, err)
	}
}

// lateOnes are the acts of another move, by a sidecar that was frozen meanwhile.
func lateOnes(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one", "two")
	from.seal(t, h, moved, "m1")
	from.resume(t, moved, "m1", nil)
	publish(t, from, moved)
	sealed := from.seal(t, h, moved, "m2")
	to.copy(t, moved, "m2", from, sealed)
	_, err := to.Copy(soon(t), moved, "m1", from.Peer(), sealed, free)
	wantRefused(t, "copy for an earlier move onto a later one's copy", err)
	for _, late := range []string{"m1", "m3"} {
		_, err := from.Seal(soon(t), moved, late, true)
		wantRefused(t, "seal what another move has sealed", err)
		for name, e := range map[string]*end{"sealed": from, "copied": to} {
			_, err := e.Resume(soon(t), moved, late, nil, &sealed)
			wantRefused(t, "resume what another move has "+name, err)
			_, err = e.Resume(soon(t), moved, late, nil, nil)
			wantRefused(t, "resume anyhow what another move has "+name, err)
			wantRefused(t, "remove what another move has "+name, e.Remove(soon(t), moved, late))
			e.refusesClients(t, h, moved)
		}
	}
	assign(t, to, moved)
	to.resume(t, moved, "m2", &sealed)
	_, err = to.Seal(soon(t), moved, "m1", true)
	wantRefused(t, "seal for an earlier move what a later one has resumed", err)
	for _, late := range []string{"m1", "m2", "m3"} {
		wantRefused(t, "remove what is served", to.Remove(soon(t), moved, late))
		_, err := to.Copy(soon(t), moved, late, from.Peer(), sealed, free)
		wantRefused(t, "copy onto what is served", err)
	}
	wantCount(t, to, moved, 3)
	wantCount(t, from, moved, 3)
}

func removesSealed(t *testing.T, h Harness) {
	from, to, sealed := copied(t, h, 0, "one")
	from.fill(t, "/default/served", "one")
	wantRefused(t, "remove what is served", from.Remove(soon(t), "/default/served", move))
	wantCount(t, from, "/default/served", 1)
	to.resume(t, moved, move, &sealed)
	wantRefused(t, "remove what was resumed", to.Remove(soon(t), moved, move))
	wantCount(t, to, moved, 1)
	if err := to.Remove(soon(t), "/default/nowhere", move); err != nil {
		t.Errorf("remove what is not here: %v", err)
	}
}

func resumeRefuses(t *testing.T, h Harness) {
	from, to, sealed := copied(t, h, 1, "one", "two")
	more, ahead := sealed, sealed
	more.Last, more.Count = sealed.Last+1, sealed.Count+1
	ahead.Floors = maps.Clone(sealed.Floors)
	for name := range ahead.Floors {
		ahead.Floors[name]++
	}
	for what, other := range map[string]moves.Extent{
		"messages that are not here":         more,
		"no message at all":                  {Empty: true},
		"a consumer that stands behind here": ahead,
	} {
		for _, e := range []*end{from, to} {
			_, err := e.Resume(soon(t), moved, move, nil, &other)
			wantRefused(t, what, err)
			e.refusesClients(t, h, moved)
		}
	}
	to.resume(t, moved, move, &sealed)
	wantCount(t, to, moved, 2)
	to.wantNext(t, moved, "two")
}

func comparesBytes(t *testing.T, h Harness) {
	from, to, sealed := copied(t, h, 0, "one", "two", "three")
	s, ok := from.Carrier.(Spoiler)
	if !ok {
		t.Skip("nobody reaches behind this broker")
	}
	to.resume(t, moved, move, &sealed)
	s.Spoil(t, moved, "two", "twi")
	got, err := to.Compare(soon(t), moved, from.Peer(), sealed, free)
	if err != nil || got.Differs == "" {
		t.Fatalf("another byte at the source: compared %+v, %v", got, err)
	}
}

// copiesAnew ends a copy in the midst, by its caller and by the end of the broker.
func copiesAnew(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved)
	random := rand.New(rand.NewPCG(1, 2)) // brokers compress
	for range 6 {
		text := make([]byte, 700_000)
		for i := range text {
			text[i] = 'a' + byte(random.Uint32N(26))
		}
		if err := from.Publish(moved, text); err != nil {
			t.Fatal(err)
		}
	}
	sealed := from.seal(t, h, moved, move)
	enough := errors.New("enough")
	told := 0
	_, err := to.Copy(soon(t), moved, move, from.Peer(), sealed, func(_ context.Context, n int) error {
		if told += n; told > 2_000_000 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatalf("a copy whose meter ends it after %d bytes: %v", told, err)
	}
	to.Kill(t)
	to.Start(t)
	become(t, "healthy after the restart", answering(to.broker))
	wantTopics(t, to, to.broker, nil, nil)
	assign(t, to, moved)
	if !h.NoHalves && to.broker.Serve(soon(t), moved, nil) == nil {
		t.Fatal("half of a copy is served")
	}
	if _, err := to.Resume(soon(t), moved, move, nil, &sealed); err == nil {
		t.Fatal("half of a copy was resumed")
	}
	if err := to.Accept(soon(t), moved, nil, sealed, from.Peer()); err != nil {
		t.Errorf("half of a copy is in the way: %v", err)
	}
	to.copy(t, moved, move, from, sealed)
	to.resume(t, moved, move, &sealed)
	wantCount(t, to, moved, 6)
	told = 0
	got, err := to.Compare(soon(t), moved, from.Peer(), sealed, func(_ context.Context, n int) error { told += n; return nil })
	if err != nil || got.Differs != "" || got.Observed == "" && (got.Compared+got.Gone != 6 || told == 0) {
		t.Fatalf("compared: %+v, %v, and the meter was told of %d bytes", got, err, told)
	}
}

func acceptRefuses(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one")
	to.fill(t, moved, "mine")
	like, err := from.Extent(soon(t), moved)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "accept what is here", to.Accept(soon(t), moved, nil, like, from.Peer()))
	sealed := from.seal(t, h, moved, move)
	_, err = to.Copy(soon(t), moved, move, from.Peer(), sealed, free)
	wantRefused(t, "copy onto what is here", err)
	publish(t, to, moved)
	wantCount(t, to, moved, 2)
	like.Bytes = 1 << 60
	wantRefused(t, "accept what there is no room for", to.Accept(soon(t), "/default/large", nil, like, from.Peer()))
}

func sealRefusesActive(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one", "two")
	from.wantNext(t, moved, "one")
	leave := from.Attach(t, moved, subscription)
	defer leave()
	become(t, "a consumer is at work", func(ctx context.Context) error {
		e, err := from.Extent(ctx, moved)
		if err == nil && e.Active == 0 {
			err = errors.New("none is seen")
		}
		return err
	})
	_, err := from.Seal(soon(t), moved, move, false)
	wantRefused(t, "seal with a consumer at work", err)
	publish(t, from, moved)
	sealed, err := from.Seal(soon(t), moved, move, true)
	if err != nil || sealed.Count != 3 {
		t.Fatalf("sealed by force: %+v, %v", sealed, err)
	}
	from.refusesClients(t, h, moved)
	to.copy(t, moved, move, from, sealed)
	assign(t, to, moved)
	to.resume(t, moved, move, &sealed)
}

func nowhereMoves(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	const nowhere = "/default/nowhere"
	_, err := from.Extent(soon(t), nowhere)
	wantRefused(t, "extent", err)
	_, err = from.Seal(soon(t), nowhere, move, false)
	wantRefused(t, "seal", err)
	_, err = to.Copy(soon(t), nowhere, move, from.Peer(), moves.Extent{Count: 1, Bytes: 1}, free)
	wantRefused(t, "copy", err)
	_, err = to.Resume(soon(t), nowhere, move, nil, &moves.Extent{Last: 7, Count: 1})
	wantRefused(t, "resume", err)
	wantTopics(t, to, to.broker, nil, nil)
}

func movesBounded(t *testing.T, h Harness) {
	from, to := launchMoving(t, h)
	from.fill(t, moved, "one")
	sealed := from.seal(t, h, moved, move)
	calls := map[string]func(context.Context) error{
		"extent": func(ctx context.Context) error { _, err := to.Extent(ctx, moved); return err },
		"accept": func(ctx context.Context) error { return to.Accept(ctx, moved, nil, sealed, from.Peer()) },
		"seal":   func(ctx context.Context) error { _, err := to.Seal(ctx, moved, move, false); return err },
		"copy": func(ctx context.Context) error {
			_, err := to.Copy(ctx, moved, move, from.Peer(), sealed, free)
			return err
		},
		"resume": func(ctx context.Context) error { _, err := to.Resume(ctx, moved, move, nil, &sealed); return err },
		"compare": func(ctx context.Context) error {
			_, err := to.Compare(ctx, moved, from.Peer(), sealed, free)
			return err
		},
		"remove": func(ctx context.Context) error { return to.Remove(ctx, moved, move) },
	}
	refusedWhenEnded(t, calls)
	to.Freeze(t)
	for name, call := range calls {
		bounded(t, name, call)
	}
	to.Thaw(t)
}
