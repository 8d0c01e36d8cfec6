package agent

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// registerSettings shows the settings that rules and dashboards judge the rest by.
func registerSettings(reg prometheus.Registerer, c Config) {
	shadow := prometheus.NewGauge(prometheus.GaugeOpts{Name: "holdfast_shadow",
		Help: "1 with --shadow: everything is decided and counted, and nothing is done. What else is shown is only supposed; expect no recovery."})
	if c.Shadow {
		shadow.Set(1)
	}
	policy := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "holdfast_policy_info",
		Help: "Always 1; the labels are the settings that decide what becomes of a broker. They should be the same in a whole cluster."},
		[]string{"registration", "assignment", "failover", "session_expired_policy", "detach", "fence", "guard"})
	policy.WithLabelValues(c.Registration, c.Assignment, c.Failover, c.SessionExpiredPolicy,
		strconv.FormatBool(c.Detach), strings.Join(c.Fence, ","), c.Guard).Set(1)
	reg.MustRegister(shadow, policy)
}
