package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var dawn = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// told makes a score that was asked and answered at the given seconds: negative ones are
// failures.
func told(seconds ...int) score {
	var s score
	for _, sec := range seconds {
		at := dawn.Add(time.Duration(max(sec, -sec)) * time.Second)
		s.asked = at
		if sec < 0 {
			s.fail(at, false)
		} else {
			s.succeed(at, time.Millisecond)
		}
	}
	return s
}

func after(seconds float64) time.Time { return dawn.Add(time.Duration(seconds * float64(time.Second))) }

func TestAnEndpointIsUpWhileItsLastAnswerIsGoodAndRecent(t *testing.T) {
	for _, c := range []struct {
		name  string
		score score
		at    float64
		want  bool
	}{
		{"never asked", score{}, 10, false},
		{"asked, no answer yet", score{asked: dawn}, 10, false},
		{"good just now", told(10), 10, true},
		{"good three probes ago", told(10), 100, true},
		{"good long ago", told(10), 101, false},
		{"failed", told(10, -11), 11, false},
		{"good again", told(-10, 11), 11, true},
		{"renewed every four minutes", told(10, 250), 251 + 2*240, true},
		{"renewals every four minutes ended", told(10, 250), 251 + 3*240, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.score.up(after(c.at)); got != c.want {
				t.Errorf("up is %v, want %v", got, c.want)
			}
		})
	}
	overtaken := told(10)
	overtaken.overtaken = true
	if !overtaken.up(after(10)) {
		t.Error("silence is not an answer")
	}
	if overtaken.fail(after(11), false); overtaken.up(after(11)) || overtaken.overtaken {
		t.Error("a failed probe settles it")
	}
}

func TestTheNextConnectionGoesToTheBestEndpoint(t *testing.T) {
	slow, quick, suspect := told(10), told(10), told(10)
	slow.latency, quick.latency = 500*time.Millisecond, 2*time.Millisecond
	suspect.overtaken = true
	open := told(10)
	open.open = true
	nearly := told(10)
	nearly.latency = 15 * time.Millisecond
	unmeasured := told(10)
	unmeasured.latency = 0
	for _, c := range []struct {
		name   string
		scores []score
		avoid  int // -1: none
		start  int
		want   int
	}{
		{"all unknown: where the line starts", make([]score, 3), -1, 2, 2},
		{"one works", []score{told(-10), {}, told(5)}, -1, 0, 2},
		{"unknown before silent", []score{suspect, {}, told(-10)}, -1, 0, 1},
		{"works before one that was not waited for", []score{open, told(10), open}, -1, 0, 1},
		{"silent before failed", []score{told(-10), suspect, told(-10)}, -1, 0, 1},
		{"all failed: the one that was left alone for longest", []score{told(-12), told(-11), told(-13)}, -1, 0, 1},
		{"the avoided one is the best", []score{told(-10), told(10), told(-9)}, 1, 0, 2},
		{"only the avoided one", []score{told(10)}, 0, 0, 0},
		{"much slower", []score{slow, quick, slow}, -1, 0, 1},
		{"a little slower", []score{nearly, quick, nearly}, -1, 0, 0},
		{"not measured", []score{quick, unmeasured}, -1, 1, 1},
		{"stale is no better than unknown", []score{{}, {asked: dawn.Add(-time.Hour), answered: dawn.Add(-time.Hour), good: true}}, -1, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := choose(c.scores, func(i int) bool { return i == c.avoid }, c.start, after(14))
			if got != c.want {
				t.Errorf("endpoint %d, want %d", got, c.want)
			}
		})
	}
}

func TestProbesAreRareWhereThereIsNothingToLearn(t *testing.T) {
	suspect, open := told(10), told(10)
	suspect.overtaken, open.open = true, true
	for _, c := range []struct {
		name  string
		score score
		anyUp bool
		want  float64 // seconds after the last request
	}{
		{"works", told(10), true, 30},
		{"first failure", told(10, -10), true, 2},
		{"third failure", told(-8, -9, -10), true, 8},
		{"many failures", told(-1, -2, -3, -4, -5, -6, -7, -8, -9, -10), true, 30},
		{"works again", told(-9, 10), true, 30},
		{"overtaken", suspect, true, .5},
		{"not waited for", open, true, .5},
		{"nothing works", told(-8, -9, -10), false, .5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.score.probeIn(after(10), c.anyUp).Seconds(); got != c.want {
				t.Errorf("in %v s, want %v s", got, c.want)
			}
		})
	}
	if s := (score{}); s.probeIn(dawn, true) > 0 {
		t.Error("one that was never asked must wait")
	}
}

func TestOnlyAMemberWithALeaderAnswersWell(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want judgement
	}{
		{"an answer", nil, succeeded},
		{"no such lease", rpctypes.ErrGRPCLeaseNotFound, succeeded},
		{"no space", rpctypes.ErrGRPCNoSpace, succeeded},
		{"wrong password", fmt.Errorf("authenticate: %w", rpctypes.ErrAuthFailed), succeeded},
		{"no leader", rpctypes.ErrGRPCNoLeader, failed},
		{"leader lost", rpctypes.ErrGRPCTimeoutDueToLeaderFail, failed},
		{"timeout in etcd", rpctypes.ErrGRPCTimeout, failed},
		{"refused", status.Error(codes.Unavailable, "connection refused"), failed},
		{"certificate refused", status.Error(codes.Unavailable, handshakeRefused), failed},
		{"our patience ended", status.FromContextError(context.DeadlineExceeded).Err(), failed},
		{"our patience ended, seen here", context.DeadlineExceeded, failed},
		{"given up here", context.Canceled, nothing},
		{"given up here, seen by gRPC", status.FromContextError(context.Canceled).Err(), nothing},
		{"never sent", errors.New("read password file"), nothing},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := judge(c.err); got != c.want {
				t.Errorf("judged %d, want %d", got, c.want)
			}
		})
	}
}

func TestAnEndpointGivenTwiceCountsOnce(t *testing.T) {
	l, err := OpenLine(Config{Endpoints: []string{"http://a:1", "http://b:1", "http://a:1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := l.Endpoints(); len(got) != 2 || got[0].URL != "http://a:1" || got[1].URL != "http://b:1" {
		t.Errorf("%+v", got)
	}
}
