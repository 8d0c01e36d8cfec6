package harness

import (
	"fmt"
	"os"
	"strings"
)

// MovePort has the server listen for clients at another port from its next start on.
func (n *NATS) MovePort(port int) error {
	conf := n.args[len(n.args)-1]
	text, err := os.ReadFile(conf)
	if err != nil {
		return fmt.Errorf("move port of %s: %w", n.Name, err)
	}
	was, is := fmt.Sprintf("\nlisten: \"0.0.0.0:%d\"\n", n.Port), fmt.Sprintf("\nlisten: \"0.0.0.0:%d\"\n", port)
	if err := os.WriteFile(conf, []byte(strings.Replace(string(text), was, is, 1)), 0o600); err != nil {
		return fmt.Errorf("move port of %s: %w", n.Name, err)
	}
	n.Port = port
	return nil
}
