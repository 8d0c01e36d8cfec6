package danube

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Kind is what went wrong for good.
type Kind string

// The disasters.
const (
	// LoadedTwice: a loaded topic was assigned again, and the live one was replaced
	// under its producers and consumers.
	LoadedTwice Kind = "loaded_twice"
	// Destroyed: an assignment of a loaded topic was deleted and no marker said that it
	// was to be unloaded, so its storage metadata and cursors are gone.
	Destroyed Kind = "destroyed"
)

// Disaster is something that must never happen to a broker.
type Disaster struct {
	Kind   Kind      `json:"kind"`
	Topic  string    `json:"topic,omitempty"`
	Broker string    `json:"broker"` // id of the process
	Detail string    `json:"detail"`
	At     time.Time `json:"at"`
}

func (d Disaster) String() string {
	return fmt.Sprintf("DISASTER: %s %s at broker %s: %s", d.Kind, d.Topic, d.Broker, d.Detail)
}

// DisasterFile is the file in the data directory, one JSON object a line.
const DisasterFile = "DISASTERS"

// Disasters are those that the data directory remembers, of all lives of its broker.
func Disasters(dataDir string) (all []Disaster, err error) {
	f, err := os.Open(filepath.Join(dataDir, DisasterFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read disasters: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var d Disaster
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return nil, fmt.Errorf("read disasters: %w", err)
		}
		all = append(all, d)
	}
	return all, lines.Err()
}

// disasters records them: in the file first, so that a kill does not hide one.
type disasters struct {
	file   string
	broker string
	mu     sync.Mutex
}

func (d *disasters) record(kind Kind, topic, detail string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := Disaster{Kind: kind, Topic: topic, Broker: d.broker, Detail: detail, At: time.Now()}
	f, err := os.OpenFile(d.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.Write(append(encode(one), '\n'))
		err = errors.Join(err, f.Close())
	}
	fmt.Fprintln(os.Stderr, one)
	if err != nil {
		panic(fmt.Sprintf("a disaster could not be recorded: %v", err)) // or it would be hidden
	}
}
