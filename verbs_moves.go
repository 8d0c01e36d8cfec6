package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/agent/control"
	"holdfast/agent/moving"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// follow asks for something until it is over, and tells people each new line of it: in a terminal
// in the place of the one before.
func follow[T any](c call, path string, look func(T) (line string, over bool)) error {
	told, form := "", "%s\n"
	if isTerminal(c.out().to) {
		form = "\r\x1b[K%s"
		defer fmt.Fprintln(c.out())
	}
	for {
		var t T
		if _, err := c.sidecar().Get(c.Context, path, &t); err != nil {
			return err
		}
		line, over := look(t)
		if line != told && c.String("output") != "json" {
			fmt.Fprintf(c.out(), form, control.Plain(line))
			told = line
		}
		if over {
			return nil
		}
		select {
		case <-c.Context.Done():
			return fmt.Errorf("it goes on: %s: 'holdfast moves --follow' watches it", line)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// unload moves one topic and waits until that is over.
func unload(c call) error {
	body := map[string]any{"topic": c.Args().First(), "to": c.String("to"), "reason": c.String("reason"), "force": c.Bool("force"), "dry_run": c.Bool("dry-run")}
	var p moving.Shown
	if err := c.sidecar().Post(c.Context, "/v1/unload", body, &p); err != nil {
		return err
	}
	if c.String("output") != "json" {
		writePlan(c.out(), p)
	}
	if c.Bool("dry-run") {
		raw, err := json.MarshalIndent(p, "", "  ")
		return c.answer(raw, err, func(*output) {})
	}
	return oneMove(c, p.ID, true)
}

// settled reports whether there is nothing to wait for. A topic that came back is served; what was
// copied goes when the target is there, which may be never.
func settled(s moving.Shown) bool {
	return s.Phase.Over() || s.Phase == moves.Returned && time.Since(s.Since[moves.Returned]) > 5*time.Second
}

// oneMove prints a move's receipt, when it is over if that is to be waited for: then one that did
// not go well is an error.
func oneMove(c call, id string, wait bool) error {
	var s moving.Shown
	err := follow(c, "/v1/moves?id="+url.QueryEscape(id), func(list []moving.Shown) (string, bool) {
		s = list[0]
		return progressLine(s), settled(s) || !wait
	})
	raw, _ := json.MarshalIndent(s, "", "  ")
	err = c.answer(raw, err, func(o *output) {
		for _, line := range s.Receipt() {
			o.line("%s", line)
		}
	})
	if err == nil && wait && s.Phase != moves.Done {
		err = fmt.Errorf("move %s: %s: %s", s.ID, s.Phase, s.End())
	}
	return err
}

// movesVerb lists moves, shows one, or calls one off.
func movesVerb(c call) error {
	switch args := c.Args().Slice(); {
	case len(args) == 0 && c.Bool("follow"):
		err := follow(c, "/v1/moves", func(list []moving.Shown) (string, bool) {
			lines, over := []string{}, true
			for _, s := range list {
				if s.Unreadable == "" && !settled(s) {
					lines, over = append(lines, progressLine(s)), false
				}
			}
			return strings.Join(lines, "; "), over
		})
		return cmp.Or(err, allMoves(c))
	case len(args) == 0:
		return allMoves(c)
	case len(args) == 1 && args[0] != "cancel":
		return oneMove(c, args[0], c.Bool("follow"))
	case len(args) != 2 || args[0] != "cancel":
		return usage("moves: write 'holdfast moves', 'holdfast moves ID' or 'holdfast moves cancel ID'")
	default:
		var s moving.Shown
		if err := c.sidecar().Post(c.Context, "/v1/moves/"+url.PathEscape(args[1])+"/cancel", struct{}{}, &s); err != nil {
			return err
		}
		c.out().line("move %s of %s: %s; %s", s.ID, s.Topic, s.Phase, s.End())
		return nil
	}
}

func allMoves(c call) error {
	var list []moving.Shown
	raw, err := c.sidecar().Get(c.Context, "/v1/moves", &list)
	return c.answer(raw, err, func(o *output) { writeMoves(o, list) })
}

func phaseText(s moving.Shown) string {
	if whole := s.Sealed; s.Moved > 0 && whole != nil && whole.Bytes > 0 {
		return fmt.Sprintf("%s %d%%", s.Phase, min(100, uint64(s.Moved)*100/whole.Bytes))
	}
	return string(s.Phase)
}

func progressLine(s moving.Shown) string {
	line := s.Topic + "  " + phaseText(s)
	if why := cmp.Or(s.Stalled, s.Error); why != "" && !s.Phase.Over() {
		line += ": " + why
	}
	return line
}

func writePlan(o *output, p moving.Shown) {
	how, size, rests := "it moves", "", ""
	switch {
	case p.ID == "":
		how = "it would move"
	case p.UnderWay:
		how = "it is moving already"
	}
	if e := p.Planned; e != nil {
		size, rests = fmt.Sprintf(", %s, %s", control.Plural(int(e.Count), "message"), bytesText(e.Bytes)), e.Rests
	}
	o.line("%s: %s from %s to %s%s. %s", p.Topic, how, p.From, p.Target(), size, rests)
	if p.Sent {
		o.line("The brokers' own cluster moves it: what it says is observed, nothing is compared.")
	} else if p.ID != "" {
		o.line("move %s; 'holdfast moves cancel %s' calls it off until the handover", p.ID, p.ID)
	}
}

// bytesText is a size as people read it.
func bytesText(n uint64) string {
	size, unit := float64(n), 0
	for ; size >= 1024; size /= 1024 {
		unit++
	}
	if unit == 0 {
		return control.Plural(int(n), "byte")
	}
	return fmt.Sprintf("%.1f %ciB", size, " KMGTPE"[unit])
}

func writeMoves(o *output, list []moving.Shown) {
	if len(list) == 0 {
		o.line("no topic was moved or is being moved: 'holdfast unload TOPIC' moves one")
		return
	}
	rows := [][]string{{"MOVE", "TOPIC", "FROM", "TO", "PHASE", "MESSAGES", "BYTES", "BEGAN", "NOTE"}}
	for _, s := range list {
		if s.Unreadable != "" {
			rows = append(rows, []string{"-", s.Topic, "-", "-", "unreadable", "-", "-", "-", s.Unreadable})
			continue
		}
		messages, size := "-", "-"
		if e := cmp.Or(s.Sealed, s.Planned); e != nil {
			messages, size = strconv.FormatUint(e.Count, 10), bytesText(e.Bytes)
		}
		rows = append(rows, []string{s.ID, s.Topic, s.From, s.To, phaseText(s), messages, size, s.At.UTC().Format(clock), cmp.Or(s.Stalled, s.Error)})
	}
	o.table(rows)
}

// drainMove drains a broker by moving its topics, and waits until that is over.
func drainMove(c call) error {
	body := map[string]any{"reason": c.String("reason"), "to": c.String("to"), "deadline_seconds": c.Duration("deadline").Seconds(),
		"leave_unmoved": c.Bool("leave-unmoved"), "dry_run": c.Bool("dry-run")}
	var p moving.DrainPlan
	if err := c.sidecar().Post(c.Context, "/v1/drain/move", body, &p); err != nil {
		return err
	}
	if p.Stay != nil {
		writeDrainPlan(c.out(), p)
	} else {
		c.out().line("a drain that moves its topics is under way: this one joins it")
	}
	if !p.Begun {
		return nil
	}
	var d moves.Drain
	err := follow(c, "/v1/drain/move", func(now moves.Drain) (string, bool) {
		d = now
		return drainLine(d, isTerminal(c.out().to)), d.State.Over()
	})
	for _, topic := range slices.Sorted(maps.Keys(d.Left)) {
		c.out().line("left  %s: %s", topic, d.Left[topic])
	}
	if d.More > 0 {
		c.out().line("left  %s more: 'holdfast topics' lists what is here", control.Plural(d.More, "topic"))
	}
	switch {
	case err != nil:
		return err
	case d.State == moves.Left:
		return &control.ExitError{Code: control.ExitLeft, Err: fmt.Errorf("%s: they are named above; what stays here goes on being served", d.Line())}
	case d.State == moves.CalledOff:
		return errors.New(d.Line())
	}
	return nil
}

// drainLine is how far a drain is; in a terminal with a bar, the rate and the time left.
func drainLine(d moves.Drain, terminal bool) string {
	const width = 20
	line, took := fmt.Sprintf("%s, %s", d.Line(), bytesText(d.Bytes)), time.Since(d.At)
	if !terminal || d.State != moves.Moving || d.Moved == 0 {
		return line
	}
	done, left := width*d.Moved/d.Topics, took/time.Duration(d.Moved)*time.Duration(d.Topics-d.Moved)
	return fmt.Sprintf("[%s%s] %s, %s/s, about %s left", strings.Repeat("#", done), strings.Repeat(".", width-done), line,
		bytesText(uint64(float64(d.Bytes)/took.Seconds())), left.Round(time.Second))
}

func writeDrainPlan(o *output, p moving.DrainPlan) {
	to, rests, total := map[string]int{}, map[string]int{}, uint64(0)
	for _, m := range p.Moves {
		to[m.Target()]++
		if e := m.Planned; e != nil {
			rests[e.Rests]++
			total += e.Bytes
		}
	}
	for _, broker := range slices.Sorted(maps.Keys(to)) {
		o.line("%s to %s", control.Plural(to[broker], "topic"), broker)
	}
	foretold := "no move has measured a rate yet"
	if p.Rate > 0 {
		foretold = fmt.Sprintf("about %s at the %s/s of the last moves", time.Duration(float64(total)/p.Rate*1e9).Round(time.Second), bytesText(uint64(p.Rate)))
	}
	o.line("%s in all, %s", bytesText(total), foretold)
	for _, why := range slices.Sorted(maps.Keys(rests)) {
		if why != "" {
			o.line("%s: %s", control.Plural(rests[why], "topic"), why)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(p.Stay)) {
		o.line("stays  %s: %s", topic, p.Stay[topic])
	}
}

// writeFleetMoves says how many topics are being moved, and names the moves that nobody carries on.
func writeFleetMoves(o *output, brokers []cluster.FleetBroker, journals map[string]cluster.KV) {
	there := map[string]bool{}
	for _, b := range brokers {
		there[b.BrokerID] = b.Registered
	}
	underWay := 0
	for _, topic := range slices.Sorted(maps.Keys(journals)) {
		m, err := moves.Parse(topic, journals[topic].Value)
		switch {
		case err != nil:
			o.line("%v. It is left alone: if nobody moves the topic, delete %s from etcd.", err, journals[topic].Key)
		case m.Phase.Over():
		case !there[m.From] && !there[m.To]:
			o.line("Move %s of %s (%s) waits: neither %s nor %s is registered.", m.ID, topic, m.Phase, m.From, m.Target())
		default:
			underWay++
		}
	}
	if underWay > 0 {
		o.line("%s under way: 'holdfast moves' beside a sidecar says how far.", control.Plural(underWay, "move"))
	}
}
