// Package page is the status page for people: one document, and the stream of
// server-sent events that keeps it live.
//
// Guaranteed: the document is complete in itself and loads nothing but the stream and
// the status of the sidecar that served it; its policy (CSP) runs no script but its
// own. Nobody who watches makes anybody wait: a stream has no queue, is told the
// newest status when it can take it, and is dropped when it takes nothing for
// WriteTimeout. There are at most MaxStreams. All end when Run does. While nobody
// watches, nothing is computed.
//
// Not guaranteed: that a stream shows each status (it shows the newest), or journal
// entries that are older than what the source still has.
package page
