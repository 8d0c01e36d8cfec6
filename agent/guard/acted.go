package guard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Acted is what a guard did, for the sidecar that comes back.
type Acted struct {
	At      time.Time `json:"at"`
	Guard   int       `json:"guard"`  // its pid
	Broker  int       `json:"broker"` // the pid that it stopped; 0: only the command was run
	How     string    `json:"how"`    // what ended it, see process.Stopper
	TookMS  int64     `json:"took_ms"`
	LeftMS  int64     `json:"left_ms"`        // from the end of the broker to the deadline; negative: too late, but with Idle
	Idle    bool      `json:"idle,omitempty"` // it was proven to serve nothing, and the deadline may be long over
	QuietMS int64     `json:"quiet_ms"`       // since the sidecar's last word when the stop began
	Runs    bool      `json:"runs,omitempty"` // the sidecar's loop did, and had nothing to say
	Problem string    `json:"problem,omitempty"`
}

// String is what was done, as a sentence.
func (a Acted) String() string {
	who, quiet := "the broker", fmt.Sprintf("no word from the sidecar for %s", ms(a.QuietMS))
	if a.Runs {
		quiet = fmt.Sprintf("the sidecar runs, and for %s had neither a renewal nor a proof that nothing is served", ms(a.QuietMS))
	}
	if a.Broker > 0 {
		who = fmt.Sprintf("process %d of the broker", a.Broker)
	}
	if a.How == howHeld {
		return fmt.Sprintf("%s: %s, which somebody started meanwhile, is held by SIGSTOP since %s, until the sidecar runs again",
			quiet, who, a.At.UTC().Format("2006-01-02 15:04:05Z"))
	}
	when := fmt.Sprintf("%s before the deadline", ms(a.LeftMS))
	switch {
	case a.Idle:
		when = "it was last proven to serve nothing"
	case a.LeftMS < 0:
		when = fmt.Sprintf("%s after the deadline", ms(-a.LeftMS))
	}
	if a.How == "" {
		return fmt.Sprintf("%s: %s was not stopped in %s: %s", quiet, who, ms(a.TookMS), a.Problem)
	}
	text := fmt.Sprintf("%s: %s was stopped by %s at %s in %s, %s",
		quiet, who, a.How, a.At.UTC().Format("2006-01-02 15:04:05Z"), ms(a.TookMS), when)
	if a.Problem != "" {
		text += "; " + a.Problem
	}
	return text
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// actsFile is where guards leave what they did, one JSON object a line.
const actsFile = "guard.log"

// maxActs bounds it, in bytes: a guard may stop a broker again and again for days.
const maxActs = 256 << 10

func leave(dir string, a Acted) error {
	raw, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode stop: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, actsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("note stop: %w", err)
	}
	if info, statErr := f.Stat(); statErr != nil || info.Size() < maxActs {
		_, err = f.Write(append(raw, '\n'))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("note stop: %w", err)
	}
	return nil
}

// takeUp reads what guards left and removes it. A guard that runs may be writing: what is
// read has another name, and is left for the next time while it is empty.
func takeUp(dir string) ([]Acted, error) {
	path := filepath.Join(dir, actsFile)
	taken := path + ".taken"
	raw, err := os.ReadFile(taken) // somebody died while taking it up, or was too early
	if len(raw) == 0 {
		if err = os.Rename(path, taken); err == nil {
			raw, err = os.ReadFile(taken)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(raw) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what the guard did: %w", err)
	}
	if err := os.Remove(taken); err != nil {
		return nil, fmt.Errorf("take up what the guard did: %w", err)
	}
	return readActs(raw), nil
}

// ActsOf is what guards did that no sidecar has taken up yet.
func ActsOf(dir string) []Acted {
	raw, _ := os.ReadFile(filepath.Join(dir, actsFile)) // there may be none
	return readActs(raw)
}

func readActs(raw []byte) (acts []Acted) {
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var a Acted
		if json.Unmarshal(lines.Bytes(), &a) == nil { // else a line torn by a crash
			acts = append(acts, a)
		}
	}
	return acts
}
