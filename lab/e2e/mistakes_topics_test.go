package e2e

// topicMistakes are those with assignments, records of topics, and the web endpoints.
var topicMistakes = []mistake{}
