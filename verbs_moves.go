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

	"holdfast/agent"
	"holdfast/agent/moving"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// followEvery is how often moves are looked at while one waits for them.
const followEvery = 300 * time.Millisecond

// unload moves one topic and waits until that is over.
func unload(c call) error {
	body := map[string]any{"topic": c.Args().First(), "to": c.String("to"), "reason": c.String("reason"), "force": c.Bool("force"), "dry_run": c.Bool("dry-run")}
	var p moving.Shown
	if err := c.sidecar().Post(c.Context, "/v1/unload", body, &p); err != nil {
		return err
	}
	people := c.String("output") != "json"
	if people {
		writePlan(c.out(), p)
	}
	if p.ID == "" {
		raw, _ := json.MarshalIndent(p, "", "  ")
		return c.answer(raw, nil, func(*output) {})
	}
	ended, raw, err := followMove(c, p.ID, people)
	if err != nil {
		return err
	}
	_ = c.answer(raw, nil, func(o *output) { writeReceipt(o, ended) })
	return verdict(ended)
}

// verdict is the error that a move's end is.
func verdict(s moving.Shown) error {
	switch s.Phase {
	case moves.Failed:
		return &agent.ExitError{Code: agent.ExitFailed, Err: fmt.Errorf("move %s failed: %s", s.ID, s.End())}
	case moves.Cancelled:
		return &agent.ExitError{Code: agent.ExitFailed, Err: fmt.Errorf("move %s was called off: %s", s.ID, s.End())}
	}
	return nil
}

// followMove returns a move, as itself and as JSON, when it is over, and says how far it is.
func followMove(c call, id string, people bool) (s moving.Shown, raw []byte, err error) {
	told := ""
	for {
		var list []moving.Shown
		if raw, err = c.sidecar().Get(c.Context, "/v1/moves?id="+url.QueryEscape(id), &list); err != nil {
			return s, nil, err
		}
		s = list[0]
		if line := progressLine(s); people && line != told {
			c.out().line("%s", line)
			told = line
		}
		if s.Phase.Over() {
			return s, raw, nil
		}
		select {
		case <-c.Context.Done():
			return s, nil, fmt.Errorf("move %s goes on: %s: 'holdfast moves %s --follow' watches it", id, s.Phase, id)
		case <-time.After(followEvery):
		}
	}
}

func progressLine(s moving.Shown) string {
	line := fmt.Sprintf("%s  %s", s.Topic, s.Phase)
	if whole := s.Sealed; s.Moved > 0 && whole != nil && whole.Bytes > 0 {
		line += fmt.Sprintf(" %d%%", min(100, uint64(s.Moved)*100/whole.Bytes))
	}
	if s.Error != "" && !s.Phase.Over() {
		line += ": " + s.Error
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
		size, rests = fmt.Sprintf(", %s, %s", count(e.Count, "message"), bytesText(e.Bytes)), e.Rests
	}
	o.line("%s: %s from %s to %s%s. %s", p.Topic, how, p.From, p.Target(), size, rests)
	if p.Sent {
		o.line("The brokers' own cluster moves it: what it says is observed, nothing is compared.")
	} else if p.ID != "" {
		o.line("move %s; 'holdfast moves cancel %s' calls it off until the handover", p.ID, p.ID)
	}
}

func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.FormatUint(n, 10) + " " + what + "s"
}

// bytesText is a size as people read it.
func bytesText(n uint64) string {
	const unit = 1024
	if n < unit {
		return count(n, "byte")
	}
	div, exp := uint64(unit), 0
	for m := n / unit; m >= unit; m /= unit {
		div, exp = div*unit, exp+1
	}
	return fmt.Sprintf("%.1f %ciB", float64(n)/float64(div), "KMGTPE"[exp])
}

// writeReceipt says what a move has come to.
func writeReceipt(o *output, s moving.Shown) {
	for _, line := range s.Receipt() {
		o.line("%s", line)
	}
}

// moving lists moves, shows one, or calls one off.
func movesVerb(c call) error {
	args := c.Args().Slice()
	if len(args) == 2 && args[0] == "cancel" {
		var s moving.Shown
		if err := c.sidecar().Post(c.Context, "/v1/moves/"+url.PathEscape(args[1])+"/cancel", struct{}{}, &s); err != nil {
			return err
		}
		c.out().line("move %s of %s is called off: %s. %s serves it again.", s.ID, s.Topic, s.Phase, s.From)
		return nil
	}
	if len(args) == 1 && args[0] != "cancel" {
		return oneMove(c, args[0])
	}
	if len(args) > 0 {
		return usage("moves: write 'holdfast moves', 'holdfast moves ID' or 'holdfast moves cancel ID'")
	}
	return allMoves(c)
}

func oneMove(c call, id string) error {
	var list []moving.Shown
	raw, err := c.sidecar().Get(c.Context, "/v1/moves?id="+url.QueryEscape(id), &list)
	if err != nil {
		return err
	}
	s := list[0]
	if c.Bool("follow") && !s.Phase.Over() {
		if s, raw, err = followMove(c, id, c.String("output") != "json"); err != nil {
			return err
		}
	}
	if err := c.answer(raw, nil, func(o *output) { writeReceipt(o, s) }); err != nil {
		return err
	}
	if c.Bool("follow") {
		return verdict(s)
	}
	return nil
}

// allMoves prints a table, again with each change while it follows and one is under way.
func allMoves(c call) error {
	told := ""
	for {
		var list []moving.Shown
		raw, err := c.sidecar().Get(c.Context, "/v1/moves", &list)
		if err != nil {
			return err
		}
		if string(raw) != told {
			told = string(raw)
			if err := c.answer(raw, nil, func(o *output) { writeMoves(o, list) }); err != nil {
				return err
			}
		}
		busy := slices.ContainsFunc(list, func(s moving.Shown) bool { return s.Unreadable == "" && !s.Phase.Over() })
		if !c.Bool("follow") || !busy {
			return nil
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-time.After(followEvery):
		}
	}
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
		phase := strings.TrimPrefix(progressLine(moving.Shown{Topic: s.Topic, Move: s.Move}), s.Topic+"  ")
		phase, _, _ = strings.Cut(phase, ":")
		rows = append(rows, []string{s.ID, s.Topic, s.From, s.To, phase, messages, size, s.At.UTC().Format(clock), cmp.Or(s.Stalled, s.Error)})
	}
	o.table(rows)
}

// drainMove drains a broker by moving its topics, and waits until that is over.
func drainMove(c call) error {
	body := map[string]any{"reason": c.String("reason"), "to": c.String("to"), "deadline_seconds": c.Duration("deadline").Seconds(),
		"leave_unmoved": c.Bool("leave-unmoved"), "dry_run": c.Bool("dry-run")}
	var p agent.DrainPlan
	if err := c.sidecar().Post(c.Context, "/v1/drain/move", body, &p); err != nil {
		return err
	}
	writeDrainPlan(c.out(), p)
	if !p.Begun {
		return nil
	}
	told := ""
	for {
		var d moves.Drain
		if _, err := c.sidecar().Get(c.Context, "/v1/drain/move", &d); err != nil {
			return err
		}
		if line := drainLine(d); line != told {
			c.out().line("%s", line)
			told = line
		}
		if d.State.Over() {
			return drainVerdict(c, d)
		}
		select {
		case <-c.Context.Done():
			return fmt.Errorf("the drain goes on: %s: 'holdfast drain --move' joins it, 'holdfast activate' calls it off", d.Line())
		case <-time.After(followEvery):
		}
	}
}

func drainVerdict(c call, d moves.Drain) error {
	for _, u := range d.Left {
		c.out().line("left  %s: %s", u.Topic, u.Why)
	}
	switch d.State {
	case moves.Left:
		return &agent.ExitError{Code: agent.ExitLeft, Err: fmt.Errorf("%s: they are named above; what stays here goes on being served", d.Line())}
	case moves.CalledOff:
		return &agent.ExitError{Code: agent.ExitFailed, Err: errors.New(d.Line())}
	}
	return nil
}

func drainLine(d moves.Drain) string {
	const width = 20
	done := 0
	if d.Topics > 0 {
		done = width * d.Moved / d.Topics
	}
	line := fmt.Sprintf("[%s%s] %s, %s", strings.Repeat("#", done), strings.Repeat(".", width-done), d.Line(), bytesText(d.Bytes))
	if took := time.Since(d.At); d.State == moves.Moving && d.Moved > 0 && d.Moved < d.Topics {
		line += fmt.Sprintf(", about %s left", (took / time.Duration(d.Moved) * time.Duration(d.Topics-d.Moved)).Round(time.Second))
	}
	return line
}

func writeDrainPlan(o *output, p agent.DrainPlan) {
	to, rests, total := map[string]int{}, map[string]int{}, uint64(0)
	for _, m := range p.Moves {
		to[m.Target()]++
		if e := m.Planned; e != nil {
			rests[e.Rests]++
			total += e.Bytes
		}
	}
	for _, broker := range slices.Sorted(maps.Keys(to)) {
		o.line("%s to %s", count(uint64(to[broker]), "topic"), broker)
	}
	o.line("%s in all", bytesText(total))
	for _, why := range slices.Sorted(maps.Keys(rests)) {
		if why != "" {
			o.line("%s: %s", count(uint64(rests[why]), "topic"), why)
		}
	}
	for _, u := range p.Stay {
		o.line("stays  %s: %s", u.Topic, u.Why)
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
		o.line("%s under way: 'holdfast moves' beside a sidecar says how far.", count(uint64(underWay), "move"))
	}
}
