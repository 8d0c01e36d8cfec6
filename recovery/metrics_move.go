package recovery

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// MovePhase is a phase of the move of one topic from this broker to another.
type MovePhase string

// The phases, in their order (DESIGN, Moving a topic).
const (
	MoveValidate MovePhase = "validate" // is it ours, and who would take it?
	MoveQuiesce  MovePhase = "quiesce"  // producers are turned away
	MoveCommit   MovePhase = "commit"   // cursors are committed, consumers paused
	MoveSeal     MovePhase = "seal"     // what it holds is flushed, the last offset recorded
	MoveHandOver MovePhase = "handover" // one transaction: the assignment goes, the marker comes
	MoveResume   MovePhase = "resume"   // until the new owner serves it
	MoveDelete   MovePhase = "delete"   // of what is left here
)

// MovePhases lists the phases.
var MovePhases = []MovePhase{MoveValidate, MoveQuiesce, MoveCommit, MoveSeal, MoveHandOver, MoveResume, MoveDelete}

// The results of a move, as metric labels, beside resultOK and resultError.
const (
	resultRefused   = "refused"   // it is not ours, or consumers are active and nobody forced it
	resultAbandoned = "abandoned" // this broker was detached, or a person called it off
)

// MoveMetrics count moves and time their phases.
type MoveMetrics struct {
	total  *prometheus.CounterVec
	phases *prometheus.HistogramVec
}

// NewMoveMetrics registers the metrics; reg may be nil.
func NewMoveMetrics(reg prometheus.Registerer) *MoveMetrics {
	f := promauto.With(reg)
	m := &MoveMetrics{
		total: f.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_moves_total",
			Help: "Moves of a topic to another broker by result. A growing error share: 'holdfast events' names the phase that failed; a move may be repeated.",
		}, []string{"result"}),
		phases: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_move_phase_duration_seconds",
			Help:    "Duration of each phase of a move. Between quiesce and resume producers are turned away: if those grow, look at the broker that takes the topics.",
			Buckets: []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300},
		}, []string{"phase"}),
	}
	for _, result := range []string{resultOK, resultError, resultRefused, resultAbandoned} {
		m.total.WithLabelValues(result)
	}
	for _, phase := range MovePhases {
		m.phases.WithLabelValues(string(phase))
	}
	return m
}
