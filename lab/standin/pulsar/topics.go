package pulsar

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// file holds a topic's messages, one line each.
func (b *Broker) file(topic string) string {
	return filepath.Join(b.cfg.Data, url.PathEscape(topic)+".log")
}

// labTopic takes persistent://tenant/ns/topic apart.
func labTopic(r *http.Request) (namespace, name string, err error) {
	rest, ok := strings.CutPrefix(r.URL.Query().Get("topic"), "persistent://")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) != 3 || !legal.MatchString(parts[0]) || !legal.MatchString(parts[1]) || parts[2] == "" {
		return "", "", fmt.Errorf("topic %q: want persistent://tenant/ns/topic", r.URL.Query().Get("topic"))
	}
	return parts[0] + "/" + parts[1], parts[2], nil
}

// labPublish stores one message if the topic's bundle is owned here, as a producer would
// that has looked it up.
func (b *Broker) labPublish(w http.ResponseWriter, r *http.Request) {
	namespace, name, err := labTopic(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	topic := namespace + "/" + name
	bundle := bundleOf(namespace, name, b.cfg.Bundles)
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.owned[bundle.String()]; o == nil || !o.active {
		refuse(w, http.StatusServiceUnavailable, "bundle "+bundle.String()+" is not served here: look it up")
		return
	}
	if err := appendLine(b.file(topic), fmt.Sprintf("%q", data)); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func appendLine(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
