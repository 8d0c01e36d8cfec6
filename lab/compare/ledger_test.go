package compare

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestALedgerTellsLostFromLateAndHowLongATopicWasNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger("/default/a")
		l.Forget()
		l.Acknowledged(0)
		l.Received(0)
		time.Sleep(3 * time.Second)
		l.Acknowledged(1)
		l.Acknowledged(2)
		time.Sleep(4 * time.Second)
		if since, n := l.Unheard(); since != 7*time.Second || n != 2 {
			t.Errorf("unheard for %v, %d messages", since, n)
		}
		l.Received(2)
		l.Received(2)
		l.End()
		time.Sleep(time.Hour)
		want := Tally{Topic: "/default/a", Acknowledged: 3, Received: 2, Duplicated: 1, Lost: 1, Gap: 4 * time.Second, Deaf: 7 * time.Second}
		if got := l.Tally(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		l.Received(1)
		if got := l.Tally(); got.Lost != 0 || got.Deaf != 7*time.Second {
			t.Errorf("after the last: %+v", got)
		}
	})
}

func TestAGapThatLastsIsCountedAndAForgottenOneIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger("/default/a")
		time.Sleep(time.Minute)
		if got := l.Tally(); got.Gap != 0 || got.Deaf != 0 {
			t.Errorf("before the first: %+v", got)
		}
		l.Acknowledged(0)
		time.Sleep(time.Minute)
		l.Forget()
		time.Sleep(2 * time.Second)
		l.ForgetDeaf()
		time.Sleep(time.Second)
		if got := l.Tally(); got.Gap != 3*time.Second || got.Deaf != time.Second {
			t.Errorf("%+v", got)
		}
	})
}
