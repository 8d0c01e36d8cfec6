package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// refusalEvery is the shortest pause between two log lines about refused peers.
const refusalEvery = time.Minute

// peer is the process at the other end of a connection to the control socket.
type peer struct {
	uid, pid int
	err      error // it is not known
}

type peerKey struct{}

// withPeer asks the kernel once a connection who connected.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}

// peerOf reads SO_PEERCRED: the credentials at the time of connect(2); see unix(7).
func peerOf(c net.Conn) peer {
	if l, ok := c.(*limitedConn); ok {
		c = l.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return peer{err: errors.New("not a unix socket")}
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return peer{err: err}
	}
	if credErr != nil {
		return peer{err: credErr}
	}
	return peer{uid: int(cred.Uid), pid: int(cred.Pid)}
}

// mayControl: the sidecar's own user, and root.
func (p peer) mayControl(own int) bool { return p.err == nil && (p.uid == own || p.uid == 0) }

// ownPeersOnly refuses other users, whatever the mode of the socket and of its directory
// became, and before its mode was set. Refusals are logged at most once a minute.
func ownPeersOnly(h http.Handler, path string, log *slog.Logger) http.Handler {
	return peersOf(os.Geteuid(), h, path, log)
}

func peersOf(own int, h http.Handler, path string, log *slog.Logger) http.Handler {
	var told atomic.Int64 // when, in Unix nanoseconds
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(peer)
		if !ok {
			p.err = errors.New("not asked")
		}
		if p.mayControl(own) {
			h.ServeHTTP(w, r)
			return
		}
		now, last := time.Now().UnixNano(), told.Load()
		if (last == 0 || now-last >= int64(refusalEvery)) && told.CompareAndSwap(last, now) {
			log.Warn("a process of another user was refused on the control socket", "uid", p.uid, "pid", p.pid, "err", p.err)
		}
		why := fmt.Errorf("%s is for its sidecar's own user (%d) and for root, and not for user %d: run as one of them", path, own, p.uid)
		if p.err != nil {
			why = fmt.Errorf("%s: who asks is not known: %w", path, p.err)
		}
		refuseWith(w, http.StatusForbidden, ExitRefused, why)
	})
}
