package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"
)

var (
	//go:embed page.html
	frameHTML string
	//go:embed page.css
	styleCSS string
	//go:embed page.js
	scriptJS string
)

// document is the page with what a browser is told about it.
type document struct {
	text, policy, tag string
}

// theDocument is put together when it is first asked for.
var theDocument = sync.OnceValue(func() document {
	text := strings.NewReplacer("/*page.css*/", styleCSS, "/*page.js*/", scriptJS).Replace(frameHTML)
	sum := sha256.Sum256([]byte(text))
	return document{
		text: text,
		policy: "default-src 'none'; script-src " + source(scriptJS) + "; style-src " + source(styleCSS) +
			"; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
			"; require-trusted-types-for 'script'; trusted-types 'none'",
		tag: `"` + hex.EncodeToString(sum[:8]) + `"`,
	}
})

// source names an inline text in a policy by its hash.
func source(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Handler serves the document. It does not change while the process runs.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, h := theDocument(), w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", d.policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache") // ask whether it is another by now
		h.Set("ETag", d.tag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(d.text))
	})
}
