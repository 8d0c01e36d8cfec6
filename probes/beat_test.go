package probes

import (
	"context"
	"testing"
	"time"
)

func TestTheBeatWakesAllWhoListen(t *testing.T) {
	b, err := NewBeat()
	if err != nil {
		t.Fatal(err)
	}
	one, other := b.Listen(), b.Listen()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	for range 2 {
		for _, c := range []<-chan struct{}{one, other} {
			select {
			case <-c:
			case <-time.After(patience):
				t.Fatal("no beat")
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := b.file.Stat(); err == nil {
		t.Error("the timer is open")
	}
}

func TestWholeSecondsAreCarriedByTheBeat(t *testing.T) {
	for d, want := range map[time.Duration]bool{
		time.Second: true, 10 * time.Second: true, 200 * time.Millisecond: false, 1500 * time.Millisecond: false, 0: false,
	} {
		if got := new(Beat).Carries(d); got != want {
			t.Errorf("%v: %v", d, got)
		}
	}
	if (*Beat)(nil).Carries(time.Second) || (*Beat)(nil).Listen() != nil {
		t.Error("no beat carries something")
	}
}
