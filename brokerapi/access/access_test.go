package access

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/fakenet"
)

func TestFilesThatCannotWorkAreNamedAndNotQuoted(t *testing.T) {
	missing, none := filepath.Join(t.TempDir(), "missing"), fakenet.File(t, "none", "secret")
	for _, c := range []struct {
		name  string
		files Files
		want  string
	}{
		{"authorities missing", Files{CACert: missing}, "--broker-cacert: open " + missing},
		{"authorities that are none", Files{CACert: none}, "--broker-cacert " + none + ": has no certificate in PEM form"},
		{"a pair that is none", Files{Cert: none, Key: none}, "--broker-cert " + none + " and --broker-key " + none + ": "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.files.Check(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	if err := (Files{}).Check(); err != nil {
		t.Errorf("no files: %v", err)
	}
}

func TestATokenThatGoesAwayIsStillTheLastOne(t *testing.T) {
	path := fakenet.File(t, "token", "first\n")
	token, err := Files{TokenFile: path}.Token()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ name, file, want string }{
		{"as it was", "first\n", "first"},
		{"renewed", "the-second", "the-second"},
		{"emptied while it is written", "", "the-second"},
		{"more than a token", "a\nb\n", "the-second"},
		{"renewed again", "third\n", "third"},
	} {
		if err := os.WriteFile(path, []byte(step.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := token.Current(); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := token.Current(); got != "third" {
		t.Errorf("removed: %q", got)
	}
	if got := token.Hide("sent third, before that the-second"); got != "sent [token], before that [token]" {
		t.Errorf("shown: %s", got)
	}
	if got := (*Token)(nil).Hide("nothing to hide"); got != "nothing to hide" {
		t.Error(got)
	}
}

func TestAServersPortIsFilledIn(t *testing.T) {
	for raw, want := range map[string]string{"nats://a": "nats://a:4222", "nats://[::1]": "nats://[::1]:4222", "tls://a:1/": "tls://a:1"} {
		if u, err := ParseServer("--broker-admin", raw, "4222", "nats", "tls"); err != nil || u.String() != want {
			t.Errorf("%s: got %v, %v, want %s", raw, u, err, want)
		}
	}
}
