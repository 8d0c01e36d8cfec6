package harness

// Violation begins a message about a safety claim that was seen broken.
const Violation = "VIOLATION: "
