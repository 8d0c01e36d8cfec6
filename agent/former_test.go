package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/cluster"
)

// testdata/former is what three sidecars of 7294cfd left of themselves: n1 active, n2 drained by an
// operator. lab/e2e records it anew and plays the upgrade itself.
func TestWhatTheVersionBeforeLeftIsRead(t *testing.T) {
	former := filepath.Join("testdata", "former")
	for id, mode := range map[string]string{"n1": "active boot holdfast", "n2": "drained disk operator"} {
		m, corrupt, err := readMemory(filepath.Join(former, id))
		if err != nil || corrupt || m.Distrust != "" {
			t.Fatalf("%s: %v %v %q", id, err, corrupt, m.Distrust)
		}
		if got := m.Mode + " " + m.Reason + " " + m.By; got != mode {
			t.Errorf("%s is %q, want %q", id, got, mode)
		}
		if m.BrokerID != id || !m.FirstBootDone || m.LeaseID == 0 || m.Epoch == 0 || m.Process == nil || m.Data == "" {
			t.Errorf("%s: %+v", id, m)
		}
	}
	keys, err := os.ReadFile(filepath.Join(former, "keys.txt"))
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(keys)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case strings.HasSuffix(key, "/state"):
			if _, err := cluster.ParseState([]byte(value)); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		case strings.HasPrefix(key, "/cluster/register/"):
			if v, err := (cluster.Registration{Value: []byte(value)}).Parse(); err != nil || v.Incarnation == "" || v.Run == "" {
				t.Errorf("%s: %+v %v", key, v, err)
			}
		case strings.HasPrefix(key, "/cluster/members/"):
			var m cluster.Member
			if err := json.Unmarshal([]byte(value), &m); err != nil || m.Era != 1 || m.Revision == 0 || m.Incarnation == "" || m.Bound == 0 {
				t.Errorf("%s: %+v %v", key, m, err)
			}
		default:
			continue
		}
		read++
	}
	if read != 9 {
		t.Errorf("%d keys of 9", read)
	}
}
