package nats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"holdfast/brokerapi"
)

// record is the part of a topic's record that this driver reads. Other systems
// keep their own fields there, so unknown ones are borne.
type record struct {
	Subjects      []string `json:"subjects"`
	Storage       string   `json:"storage"`  // "file" (default) or "memory"
	Replicas      int      `json:"replicas"` // 1 (default) to 5
	MaxBytes      int64    `json:"max_bytes"`
	MaxMsgs       int64    `json:"max_msgs"`
	MaxAgeSeconds int64    `json:"max_age_seconds"`
}

// streamConfig is what a new stream is created with; what is left out is the
// server's default. Zero means no limit.
type streamConfig struct {
	Name      string        `json:"name"`
	Subjects  []string      `json:"subjects"`
	Retention string        `json:"retention"`
	Storage   string        `json:"storage"`
	Discard   string        `json:"discard"`
	Replicas  int           `json:"num_replicas"`
	MaxBytes  int64         `json:"max_bytes,omitempty"`
	MaxMsgs   int64         `json:"max_msgs,omitempty"`
	MaxAge    time.Duration `json:"max_age,omitempty"`
}

// configOf is the stream that a topic and its record ask for. Errors name the
// record's key, with the prefix that all keys have, and what to write there.
func configOf(prefix, topic string, raw []byte) (streamConfig, error) {
	name, err := streamName(topic)
	if err != nil {
		return streamConfig{}, err
	}
	cfg := streamConfig{Name: name, Retention: "limits", Discard: "old"}
	var rec record
	if raw = bytes.TrimSpace(raw); len(raw) > 0 {
		if err := json.Unmarshal(raw, &rec); err != nil {
			return streamConfig{}, fmt.Errorf(`topic record %s/topics%s: cannot be read: %w: write null, or JSON like {"subjects":["orders.>"]}`, prefix, topic, err)
		}
	}
	if cfg.Storage, err = oneOf(rec.Storage, "file", "memory"); err != nil {
		return streamConfig{}, fmt.Errorf("topic record %s/topics%s: storage: %w", prefix, topic, err)
	}
	if rec.Replicas < 0 || rec.Replicas > 5 {
		return streamConfig{}, fmt.Errorf("topic record %s/topics%s: replicas %d: want 1 to 5", prefix, topic, rec.Replicas)
	}
	cfg.Replicas = max(rec.Replicas, 1)
	const maxSeconds = int64(1<<63-1) / int64(time.Second)
	if rec.MaxBytes < 0 || rec.MaxMsgs < 0 || rec.MaxAgeSeconds < 0 || rec.MaxAgeSeconds > maxSeconds {
		return streamConfig{}, fmt.Errorf("topic record %s/topics%s: max_bytes %d, max_msgs %d, max_age_seconds %d: each must be 0 (no limit) or more, max_age_seconds at most %d",
			prefix, topic, rec.MaxBytes, rec.MaxMsgs, rec.MaxAgeSeconds, maxSeconds)
	}
	cfg.MaxBytes, cfg.MaxMsgs, cfg.MaxAge = rec.MaxBytes, rec.MaxMsgs, time.Duration(rec.MaxAgeSeconds)*time.Second
	cfg.Subjects, err = subjectsOf(prefix, topic, rec.Subjects)
	return cfg, err
}

func oneOf(value string, allowed ...string) (string, error) {
	if value == "" {
		return allowed[0], nil
	}
	for _, a := range allowed {
		if value == a {
			return a, nil
		}
	}
	return "", fmt.Errorf("%q: want %s", value, strings.Join(allowed, " or "))
}

// subjectsOf are the given subjects, or the default: the topic with dots.
func subjectsOf(prefix, topic string, given []string) ([]string, error) {
	for _, s := range given {
		if err := checkSubject(s); err != nil {
			return nil, fmt.Errorf("topic record %s/topics%s: subject %q: %w", prefix, topic, s, err)
		}
	}
	if len(given) > 0 {
		return given, nil
	}
	ns, name, err := brokerapi.SplitTopic(topic)
	if err != nil {
		return nil, err
	}
	subject := ns + "." + name
	err = checkSubject(subject)
	if err == nil && strings.ContainsAny(subject, "*>") {
		err = fmt.Errorf("has a wildcard character")
	}
	if err != nil {
		return nil, fmt.Errorf(`topic %q: cannot be the NATS subject %q (%w): name its subjects in the topic's record, %s/topics%s = {"subjects":["…"]}`, topic, subject, err, prefix, topic)
	}
	return []string{subject}, nil
}

// checkSubject refuses what NATS does not take as a stream's subject, and what
// would make a serving stream look quiesced.
func checkSubject(subject string) error {
	if !utf8.ValidString(subject) {
		return fmt.Errorf("is not UTF-8")
	}
	if strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("has a space or a control character")
	}
	tokens := strings.Split(subject, ".")
	for i, t := range tokens {
		switch {
		case t == "":
			return fmt.Errorf("has an empty part: want parts divided by single dots")
		case t == ">" && i < len(tokens)-1:
			return fmt.Errorf("has > before its end")
		}
	}
	if meets(tokens, strings.Split(parkedFilter, ".")) {
		return fmt.Errorf("takes %s, where Holdfast keeps quiesced streams", parkedFilter)
	}
	return nil
}

// meets is true if some subject matches both patterns.
func meets(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == ">" || b[i] == ">" {
			return true
		}
		if a[i] != b[i] && a[i] != "*" && b[i] != "*" {
			return false
		}
	}
	return len(a) == len(b)
}
