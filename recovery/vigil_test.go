package recovery

import (
	"strings"
	"testing"
	"time"
)

// looks is what one look shows of the leases 1 (of n2) and 2 (of n3), by the seconds that are left.
type looks struct {
	at   int // seconds since the vigil began
	term uint64
	left map[int64]int
	with func(s *Sighting)
}

// elected is a look each second, under another leader each time.
func elected(seconds int, left map[int64]int) (all []looks) {
	for i := range seconds {
		all = append(all, looks{i, uint64(5 + i), left, nil})
	}
	return all
}

func TestOnlyALeaseThatRisesIsLife(t *testing.T) {
	unknown := func(s *Sighting) { s.Unknown = true }
	refused := func(s *Sighting) { s.Refused = "no right" }
	garbled := func(s *Sighting) {
		if s.Lease == 2 {
			s.Unread = "the record of n3 cannot be read"
		}
	}
	both := func(one, two int) map[int64]int { return map[int64]int{1: one, 2: two} }
	for _, c := range []struct {
		name  string
		looks []looks
		want  Life
	}{
		{"not looked", nil, Unwatched},
		{"one look", []looks{{0, 5, both(30, 20), nil}}, Unwatched},
		{"nobody is there", []looks{{0, 5, nil, nil}}, Lingering},
		{"up", []looks{{0, 5, both(30, 20), nil}, {4, 5, both(31, 16), nil}}, Alive},
		{"not down, though seconds passed", []looks{{0, 5, both(30, 20), nil}, {4, 5, both(30, 16), nil}}, Alive},
		{"not down within a second", []looks{{0, 5, both(30, 20), nil}, {1, 5, both(30, 20), nil}}, Unwatched},
		{"down by less than half of the time", []looks{{0, 5, both(31, 20), nil}, {4, 5, both(30, 16), nil}}, Alive},
		{"there long after it must have ended", []looks{{0, 5, both(30, 20), nil}, {90, 5, both(28, 18), nil}}, Alive},
		{"both run out", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(4, 0), nil}, {8, 5, map[int64]int{1: 0}, nil}, {12, 5, nil, nil}}, Lingering},
		{"one must have ended, and nobody looked since", []looks{{0, 5, map[int64]int{1: 0}, nil}}, Unwatched},
		{"one was about to end, and is renewed", []looks{{0, 5, map[int64]int{1: 0}, nil}, {4, 5, map[int64]int{1: 28}, nil}}, Alive},
		{"both run out, and etcd is late to delete them", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(4, 0), nil}, {12, 5, map[int64]int{1: 0}, nil}}, Lingering},
		{"both stay at their end", []looks{{0, 5, both(2, 1), nil}, {4, 5, both(0, 0), nil}, {8, 5, both(0, 0), nil}, {12, 5, both(0, 0), nil}}, Lingering},
		{"both stay at their end, and are not waited for yet", []looks{{0, 5, both(0, 0), nil}, {2, 5, both(0, 0), nil}}, Unwatched},
		{"both stand still", []looks{{0, 5, both(20, 10), nil}, {4, 5, both(20, 10), nil}, {8, 5, both(20, 10), nil}}, Unwatched},
		{"both stand still until they must have ended", []looks{{0, 5, both(20, 10), nil}, {4, 5, both(20, 10), nil}, {24, 5, both(6, 6), nil}}, Lingering},
		{"one is higher, and no renewal has left so little", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(20, 1), nil}}, Unwatched},
		{"one is as high as the earliest renewal leaves it", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(27, 1), nil}}, Alive},
		{"a leader lifts both", []looks{{0, 5, both(8, 4), nil}, {4, 6, both(33, 33), nil}}, Unwatched},
		{"a leader lifts both, and they run out", []looks{{0, 5, both(8, 4), nil}, {4, 6, both(33, 33), nil}, {20, 6, both(17, 17), nil}}, Unwatched},
		{"a leader lifts both, and one is renewed", []looks{{0, 5, both(8, 4), nil}, {4, 6, both(31, 33), nil}, {8, 6, both(31, 29), nil}}, Alive},
		{"leaders are elected all the while", elected(38, both(33, 33)), Lingering},
		{"leaders are elected, and not for long enough", elected(32, both(33, 33)), Unwatched},
		{"leaders are elected, and one is renewed in the end", append(elected(24, both(33, 33)), looks{25, 29, both(29, 29), nil}, looks{29, 29, both(30, 25), nil}), Alive},
		{"nobody looked for long, and a leader was elected meanwhile", []looks{{0, 5, both(8, 4), nil}, {60, 6, both(31, 31), nil}}, Unwatched},
		{"the same, and one is renewed", []looks{{0, 5, both(8, 4), nil}, {60, 6, both(31, 31), nil}, {64, 6, both(31, 27), nil}}, Alive},
		{"the same, and they run out", []looks{{0, 5, both(8, 4), nil}, {60, 6, both(31, 31), nil}, {80, 6, both(11, 11), nil}, {96, 6, nil, nil}}, Lingering},
		{"a leader is elected again and again, and we may not ask", []looks{{0, 5, both(8, 4), refused}, {20, 6, both(33, 33), refused}, {36, 7, both(33, 33), refused}}, Alive},
		{"one answer is late when they must have ended", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(4, 1), nil}, {12, 5, both(0, 0), unknown}}, Unwatched},
		{"the same, and the next one is not", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(4, 1), nil}, {12, 5, both(0, 0), unknown}, {16, 5, nil, nil}}, Lingering},
		{"every other answer is late, for ever", []looks{{0, 5, both(8, 4), nil}, {8, 5, both(1, 0), unknown}, {16, 5, both(0, 0), nil}, {24, 5, both(0, 0), unknown}, {32, 5, both(0, 0), nil}, {36, 5, both(0, 0), unknown}}, Lingering},
		{"etcd does not know yet", []looks{{0, 5, both(8, 4), nil}, {4, 5, both(0, 0), unknown}, {8, 5, both(8, 4), nil}}, Unwatched},
		{"etcd never knows", []looks{{0, 5, both(0, 0), unknown}, {20, 5, both(0, 0), unknown}, {36, 5, both(0, 0), unknown}}, Alive},
		{"we may not ask", []looks{{0, 5, both(0, 0), refused}, {4, 5, both(0, 0), refused}}, Unwatched},
		{"we may not ask, and they stay", []looks{{0, 5, both(0, 0), refused}, {36, 5, both(0, 0), refused}}, Alive},
		{"we may not ask, and they go", []looks{{0, 5, both(0, 0), refused}, {36, 5, nil, nil}}, Lingering},
		{"the record of one cannot be read", []looks{{0, 5, map[int64]int{2: 30}, garbled}, {4, 5, map[int64]int{2: 31}, garbled}}, Unwatched},
		{"the record of one cannot be read, and it stays", []looks{{0, 5, map[int64]int{2: 30}, garbled}, {36, 5, map[int64]int{2: 31}, garbled}}, Hidden},
		{"the record of one cannot be read, and it goes", []looks{{0, 5, map[int64]int{2: 30}, garbled}, {36, 5, nil, nil}}, Lingering},
		{"the record of one cannot be read, and another one lives", []looks{{0, 5, both(30, 30), garbled}, {4, 5, both(31, 31), garbled}}, Alive},
		{"the record of one cannot be read, and another one ends", []looks{{0, 5, both(30, 30), garbled}, {36, 5, map[int64]int{2: 31}, garbled}}, Hidden},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v Vigil
			now := time.Duration(0)
			for _, l := range c.looks {
				now = time.Duration(l.at) * time.Second
				var seen []Sighting
				for id, left := range l.left {
					s := Sighting{Peer: map[int64]string{1: "n2", 2: "n3"}[id], Lease: id, Asked: now, Answered: now + 5*time.Millisecond, Left: time.Duration(left) * time.Second, Granted: 32 * time.Second}
					if l.with != nil {
						l.with(&s)
					}
					seen = append(seen, s)
				}
				v.Look(l.term, seen, 32*time.Second, now)
			}
			got, said := v.Verdict()
			if got != c.want || said == "" {
				t.Errorf("%d: %q, want %d", got, said, c.want)
			}
			if got == Unwatched && v.Until() > now+37*time.Second {
				t.Errorf("waits until %v at %v", v.Until(), now)
			}
		})
	}
}

// A lease that ends before the next look would be due may be that of a peer whose renewals
// are further apart than its life.
func TestTheNextLookIsDueOneRenewalLaterOrOnceAllMustHaveEnded(t *testing.T) {
	var v Vigil
	if !v.Due(time.Minute, 0) {
		t.Error("not due before the first look")
	}
	v.Look(5, []Sighting{{Peer: "n2", Lease: 1, Left: 3 * time.Second}}, 32*time.Second, 0)
	for at, due := range map[time.Duration]bool{time.Second: false, v.Until(): false, v.Until() + 1: true, time.Minute: true} {
		if v.Due(time.Minute, at) != due {
			t.Errorf("due after %v, which ends after %v: %v", at, v.Until(), !due)
		}
	}
	v.Look(5, []Sighting{{Peer: "n2", Lease: 1, Asked: 7 * time.Second, Left: 0}}, 32*time.Second, 7*time.Second)
	if v.Due(time.Minute, 8*time.Second) {
		t.Error("due again at once")
	}
}

func TestAVigilSaysWhomItWaitsForAndNoLongerThanTheLastLease(t *testing.T) {
	var v Vigil
	seen := func(left ...int) (all []Sighting) {
		for i, l := range left {
			all = append(all, Sighting{Peer: "n" + string(rune('2'+i)), Lease: int64(i + 1), Left: time.Duration(l) * time.Second})
		}
		return all
	}
	v.Look(5, seen(3, 20, 7, 9, 8), 32*time.Second, 0)
	if _, said := v.Verdict(); !strings.Contains(said, "n2, n3, n4 or 2 others") {
		t.Errorf("%q", said)
	}
	if got := v.Until(); got < 20*time.Second || got > 24*time.Second {
		t.Errorf("waits until %v, the last lease ends after 20s", got)
	}
}
