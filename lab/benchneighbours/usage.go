package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a process has used.
type usage struct {
	cpu    time.Duration
	memory int64 // resident, in bytes
}

func look(pid int) (usage, error) {
	// The clock of another process's processor time, see clock_getcpuclockid(3).
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return usage{}, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			return usage{time.Duration(ts.Nano()), kb << 10}, err
		}
	}
	return usage{}, fmt.Errorf("process %d has no memory: it ended", pid)
}

// mostRequests is the most requests in a second that etcd counted until ctx ended.
func mostRequests(ctx context.Context, endpoint string) (most int) {
	tick := time.NewTicker(counted)
	defer tick.Stop()
	type reading struct {
		at time.Time
		n  int
	}
	readings := []reading{{time.Now(), 0}} // it starts with none
	for {
		if n, err := requests(ctx, endpoint); err == nil {
			now := reading{time.Now(), n}
			readings = append(readings, now)
			for len(readings) > 2 && now.at.Sub(readings[1].at) >= time.Second {
				readings = readings[1:]
			}
			span := max(now.at.Sub(readings[0].at), time.Second)
			most = max(most, int(float64(n-readings[0].n)/span.Seconds()))
		}
		select {
		case <-ctx.Done():
			return most
		case <-tick.C:
		}
	}
}

// requests reads how many calls etcd has begun to answer since its start.
func requests(ctx context.Context, endpoint string) (sum int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "grpc_server_started_total{") {
			continue
		}
		f := strings.Fields(line)
		n, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("read %q: %w", line, err)
		}
		sum += int(n)
	}
	return sum, nil
}
