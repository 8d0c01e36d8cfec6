package probes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// inTuning runs claim beside a health loop that asks every ten seconds.
func inTuning(t *testing.T, claim func(h *Health, b *fakeBroker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBroker{}
		h := NewHealth(HealthSettings{Interval: 10 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3}, b.check, nil, quiet(), prometheus.NewPedanticRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		claim(h, b)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestHealthIsAskedByTheNewSettingsAtOnce(t *testing.T) {
	inTuning(t, func(h *Health, b *fakeBroker) {
		time.Sleep(25 * time.Second) // asked at 0, 10 and 20 s
		h.Tune(HealthSettings{Interval: time.Second, Timeout: time.Second, Rise: 2, Fall: 5})
		synctest.Wait()
		b.set("", errors.New("refused"))
		if v := h.Snapshot(); v.At(time.Now()) != Up || v.At(v.LastResultAt.Add(3*time.Second)) != Up || v.At(v.LastResultAt.Add(3*time.Second+1)) != Unknown {
			t.Errorf("%+v", v)
		}
		time.Sleep(4500 * time.Millisecond) // four failures
		if v := h.Snapshot(); v.Verdict != Up {
			t.Errorf("after 4.5 s: %+v", v)
		}
		time.Sleep(time.Second)
		if v := h.Snapshot(); v.Verdict != Down {
			t.Errorf("after 5.5 s: %+v", v)
		}
	})
}

// A verdict of a slow schedule is older than a quick one allows: it must not be void in the
// moment between the change and the next answer.
func TestAQuickerScheduleVoidsNoVerdict(t *testing.T) {
	inTuning(t, func(h *Health, b *fakeBroker) {
		time.Sleep(19 * time.Second) // the last result is nine seconds old
		b.set("hang", nil)
		h.Tune(HealthSettings{Interval: time.Second, Timeout: 500 * time.Millisecond, Rise: 1, Fall: 3})
		synctest.Wait()
		if v := h.Snapshot(); v.At(time.Now()) != Up {
			t.Errorf("%+v", v)
		}
		time.Sleep(5 * time.Second)
		if v := h.Snapshot(); v.At(time.Now()) != Down {
			t.Errorf("a broker that hangs: %+v", v)
		}
	})
}

func TestASlowerScheduleLetsNoVerdictGoStale(t *testing.T) {
	inTuning(t, func(h *Health, b *fakeBroker) {
		time.Sleep(time.Second)
		h.Tune(HealthSettings{Interval: time.Minute, Timeout: time.Second, Rise: 2, Fall: 3})
		for range 300 {
			time.Sleep(time.Second)
			if v := h.Snapshot(); v.At(time.Now()) != Up {
				t.Fatalf("%+v", v)
			}
		}
	})
}
