package moving

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"holdfast/recovery/moves"
)

func TestOwnMovesAreShownFromMemoryTheOldestFirst(t *testing.T) {
	now := time.Now()
	begun := func(topic string, ago time.Duration) *under {
		m := moves.Move{ID: "m" + topic[1:2], Topic: topic, From: "n1", To: "n2"}
		return &under{Move: m.Begun(now.Add(-ago))}
	}
	w := &Worker{own: map[string]*under{"/b/x": begun("/b/x", 0), "/a/x": begun("/a/x", 0), "/c/x": begun("/c/x", 2*stalled)}}
	w.own["/a/x"].At = w.own["/b/x"].At
	w.own["/c/x"].Error = "no room"
	var topics []string
	list := w.Own()
	for _, s := range list {
		topics = append(topics, s.Topic)
	}
	if got := strings.Join(topics, " "); got != "/c/x /a/x /b/x" {
		t.Fatalf("shown are %s", got)
	}
	if s := list[0].Stalled; !strings.Contains(s, "n2's turn: no room: 'holdfast status' at n2, or 'holdfast moves cancel mc'") {
		t.Errorf("of one that gets no further: %q", s)
	}
	if s := list[1].Stalled; s != "" {
		t.Errorf("of one that has just begun: %q", s)
	}
	text, err := json.Marshal(list[1])
	if err != nil || !strings.HasPrefix(string(text), `{"topic":"/a/x","format":`) {
		t.Errorf("%s, %v", text, err)
	}
	list[1].Phase = moves.Done
	if w.own["/a/x"].Phase != moves.Pending {
		t.Error("what is shown is the worker's own")
	}
}

func TestATopicWithMoreConsumersThanAJournalHoldsIsLeft(t *testing.T) {
	onStage(t, Settings{}, []string{"/n/a", "/n/b"}, func(g *stage, a, b *side) {
		a.change(func() { a.crowded = "/n/a" })
		g.after(time.Second)
		g.drain(moves.Drain{By: "operator"})
		if d := g.drainIs(10*time.Second, moves.Left); d.Moved != 1 || !strings.Contains(d.Left["/n/a"], "consumers (2000") {
			g.t.Errorf("%d moved, left %q", d.Moved, d.Left)
		}
	})
}

// A target that has only to look, and says nothing, is named soon.
func TestWhoSaysNothingToANewMoveIsNamedSoon(t *testing.T) {
	for ago, want := range map[time.Duration]string{9 * time.Second: "", 35 * time.Second: "pending for 30s, which is n2's turn: it has said nothing: 'holdfast status' at n2"} {
		m := moves.Move{ID: "m1", From: "n1", To: "n2", Phase: moves.Pending, Since: map[moves.Phase]time.Time{moves.Pending: time.Now().Add(-ago)}}
		if s := shown(m, 0); !strings.HasPrefix(s.Stalled, want) || want == "" && s.Stalled != "" {
			t.Errorf("after %s: %q", ago, s.Stalled)
		}
	}
}
