// Package alerttest runs rule tests in promtool's own format with Prometheus' rule engine as a
// library, so that they need no program that is not built from this module. The same files
// pass `promtool test rules`.
//
// Guaranteed: what promtool would refuse or report is reported here: unknown fields, a rule
// that cannot be evaluated, an alert that fires too early, too late, or in other words.
// Not supported: histograms as expected samples, start_timestamp and fuzzy_compare; a file
// that uses them is refused.
package alerttest
