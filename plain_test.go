package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"holdfast/agent/check"
	"holdfast/agent/control"
	"holdfast/cluster"
)

// fill puts the text wherever v has room for one.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), text)
			}
		}
	}
}

func filled[T any](text string) (v T) {
	fill(reflect.ValueOf(&v).Elem(), text)
	return v
}

// telling is a sidecar all of whose answers have that text everywhere.
func telling(t *testing.T, text string) (socket string) {
	t.Helper()
	return sidecar(t, func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch r.URL.Path {
		case "/v1/topics":
			answer = filled[[]control.TopicStatus](text)
		case "/v1/events":
			answer = filled[control.Event](text)
		case "/v1/events/1":
			answer = filled[control.Explanation](text)
		case "/v1/pause", "/v1/resume":
			answer = filled[control.PauseAnswer](text)
		case "/v1/reload":
			answer = filled[control.Reloaded](text)
		case "/v1/leave":
			w.WriteHeader(http.StatusConflict)
			answer = map[string]any{"error": text, "exit_code": control.ExitRefused}
		default:
			answer = filled[control.Status](text)
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
}

// wantPlain wants as many lines as harmless has, and nothing in them that a terminal does not just show.
func wantPlain(t *testing.T, what, got, harmless string) {
	t.Helper()
	for line := range strings.Lines(got) {
		if line = strings.TrimSuffix(line, "\n"); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			t.Errorf("%s prints %q", what, line)
		}
	}
	if strings.Count(got, "\n") != strings.Count(harmless, "\n") || harmless == "" {
		t.Errorf("%s prints other lines: %q, and not %q", what, got, harmless)
	}
}

func TestWhatOthersSayIsOnlyShown(t *testing.T) {
	const text = "x\x1b[31m\nn2\u009b2J\r\x7f\u202ey"
	evil, harmless := telling(t, text), telling(t, "x")
	for _, args := range [][]string{
		{"status"}, {"topics"}, {"events"}, {"explain", "1"}, {"activate"}, {"drain"}, {"confirm"}, {"leave"},
		{"pause", "--for", "1m", "--owner", "ops", "--reason", "disk"}, {"resume"}, {"reload"},
	} {
		ask := func(socket string) string {
			_, stdout, stderr := holdfast(t, append([]string{args[0], "--control-socket", socket}, args[1:]...)...)
			return stdout + stderr
		}
		got := ask(evil)
		if args[0] == "leave" { // the lines of an error are its causes
			got = strings.Replace(got, "\nholdfast: n2", "", 1)
		}
		wantPlain(t, args[0], got, ask(harmless))
		if !strings.Contains(got, `x\x1b[31m`) {
			t.Errorf("%s does not show what there is: %q", args[0], got)
		}
	}

	fleet := func(text string) string {
		var b bytes.Buffer
		odd := filled[cluster.FleetBroker](text)
		odd.Registered, odd.Topics = false, 2
		writeFleet(&output{to: &b}, []cluster.FleetBroker{filled[cluster.FleetBroker](text), odd}, night)
		return b.String()
	}
	wantPlain(t, "fleet", fleet(text), fleet("x"))
	forgotten := func(text string) string {
		var b bytes.Buffer
		o := &output{to: &b}
		o.line("%s is forgotten: %s.", text, whatRemains(filled[cluster.Remains](text)))
		o.line("%s.", counted("Topics that wait for a broker now", []string{text}))
		return b.String()
	}
	wantPlain(t, "forget", forgotten(text), forgotten("x"))
	found := func(text string) string {
		var b bytes.Buffer
		check.Write(&b, []check.Finding{{What: "broker", Text: text}, {What: "etcd", Err: errors.New(text)}})
		return b.String()
	}
	wantPlain(t, "check", found(text), found("x"))
}
