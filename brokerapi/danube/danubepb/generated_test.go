package danubepb

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestTheGeneratedCodeIsWhatTheProtoFilesGive(t *testing.T) {
	for _, needed := range []string{"protoc", "make", "bash"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	cmd := exec.Command("make", "-C", filepath.Join("..", "..", ".."), "proto", "PROTO_OUT="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make proto: %v\n%s", err, out)
	}
	want, err := filepath.Glob("*.pb.go")
	if err != nil {
		t.Fatal(err)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*.pb.go"))
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != len(want) || len(made) == 0 {
		t.Fatalf("made %q, have %q: run make proto", made, want)
	}
	for _, name := range want {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(withoutProtoc(made), withoutProtoc(have)) {
			t.Errorf("%s is not what its .proto gives: run make proto", name)
		}
	}
}

// withoutProtoc drops the header lines that name the version of protoc, which is the
// one thing here that is not pinned: it comes from the machine.
func withoutProtoc(code []byte) []byte {
	var kept [][]byte
	for line := range bytes.Lines(code) {
		if !bytes.HasPrefix(line, []byte("// ")) || !bytes.Contains(line, []byte("protoc ")) {
			kept = append(kept, line)
		}
	}
	return bytes.Join(kept, nil)
}
