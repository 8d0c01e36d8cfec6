package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// PulsarAnswers is what a real broker answered, in this order, when it had just started and
// its namespace public/default had PulsarBundles bundles.
type PulsarAnswers struct {
	Version  string         `json:"version"`
	Recorded string         `json:"recorded"` // date
	Answers  []PulsarAnswer `json:"answers"`
}

// PulsarAnswer is one of them. "BROKER" stands for the broker's host:port.
type PulsarAnswer struct {
	Request     string `json:"request"` // method and path
	Accept      string `json:"accept,omitempty"`
	Status      int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
	Location    string `json:"location,omitempty"`
	Body        string `json:"body,omitempty"` // the first 4 kB
}

func pulsarAnswersFile() (string, error) {
	root, err := Root()
	return filepath.Join(root, "lab", "standin", "pulsar", "testdata", "answers-"+PulsarVersion+".json"), err
}

// ReadPulsarAnswers reads what was recorded.
func ReadPulsarAnswers() (a PulsarAnswers, err error) {
	path, err := pulsarAnswersFile()
	if err != nil {
		return a, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return a, fmt.Errorf("read Pulsar's answers: %w", err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("read Pulsar's answers: %w", err)
	}
	return a, nil
}

// Write records the answers in the place of the former ones.
func (a PulsarAnswers) Write() error {
	path, err := pulsarAnswersFile()
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write Pulsar's answers: %w", err)
	}
	e := json.NewEncoder(f)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil {
		f.Close()
		return fmt.Errorf("write Pulsar's answers: %w", err)
	}
	return f.Close()
}

// Ask asks a broker, real or not, the same.
func (a PulsarAnswers) Ask(ctx context.Context, p *Pulsar, q PulsarAnswer) (PulsarAnswer, error) {
	method, path, _ := strings.Cut(q.Request, " ")
	req, err := http.NewRequestWithContext(ctx, method, p.URL()+strings.ReplaceAll(path, "BROKER", p.Advertised()), nil)
	if err != nil {
		return PulsarAnswer{}, err
	}
	req.Header.Set("Accept", q.Accept)
	resp, err := p.http.Do(req)
	if err != nil {
		return PulsarAnswer{}, fmt.Errorf("ask %s: %w", p.Name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return PulsarAnswer{}, fmt.Errorf("ask %s: %w", p.Name, err)
	}
	named := strings.NewReplacer(p.Advertised(), "BROKER")
	return PulsarAnswer{q.Request, q.Accept, resp.StatusCode, resp.Header.Get("Content-Type"),
		named.Replace(resp.Header.Get("Location")), named.Replace(string(body))}, nil
}

// Differs says in what another answer to the same is not like this one, as far as anybody
// should rely on it: the status, what the content is called, and what is in an answer that
// is no refusal: names of the same kinds of values, and a plain text word by word.
func (q PulsarAnswer) Differs(got PulsarAnswer) error {
	switch {
	case q.Status != got.Status:
		return fmt.Errorf("status %d, want %d: %s", got.Status, q.Status, got.Body)
	case q.ContentType != got.ContentType:
		return fmt.Errorf("content type %q, want %q", got.ContentType, q.ContentType)
	case q.Location != got.Location:
		return fmt.Errorf("it leads to %q, want %q", got.Location, q.Location)
	case q.Status/100 != 2:
		return nil
	}
	var want, have any
	if json.Unmarshal([]byte(q.Body), &want) != nil {
		if q.Body != got.Body {
			return fmt.Errorf("%q, want %q", got.Body, q.Body)
		}
		return nil
	}
	if err := json.Unmarshal([]byte(got.Body), &have); err != nil || !alike(want, have) {
		return fmt.Errorf("%s, want one like %s", got.Body, q.Body)
	}
	return nil
}

// alike compares the fields of objects and the length of lists. Texts may differ, such as
// addresses.
func alike(want, have any) bool {
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok || len(want) != len(have) {
			return false
		}
		for name, value := range want {
			other, ok := have[name]
			if !ok || !alike(value, other) {
				return false
			}
		}
		return true
	case []any:
		have, ok := have.([]any)
		if !ok || len(want) != len(have) {
			return false
		}
		for i := range want {
			if !alike(want[i], have[i]) {
				return false
			}
		}
		return true
	}
	return reflect.TypeOf(want) == reflect.TypeOf(have)
}
