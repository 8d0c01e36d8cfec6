package e2e

// processMistakes are those with verbs, settings, and the broker and its process.
var processMistakes = []mistake{
	{
		name:    "a verb that there is not",
		command: "chekc",
		exit:    2,
		message: `unknown verb "chekc": did you mean check?`,
	},
	{
		name:    "a flag that there is not",
		command: "check {settings} --data-dri /var/lib/nats",
		exit:    2,
		message: "check: unknown flag --data-dri: did you mean --data-dir?",
	},
	{
		name:    "a TTL without a unit",
		command: "check {settings} --lease-ttl 32",
		exit:    2,
		message: `--lease-ttl "32": not a duration: write a number with a unit, such as 32s`,
	},
	{
		name: "a process name that several servers have",
		given: func(w *world) {
			w.broker("beside")
			n, err := sharedBroker()
			w.ok(err)
			w.set("pid", n.PID())
		},
		command: "check {settings} --broker-process nats-server",
		message: `process   ok      stopped by SIGTERM and SIGKILL to process "nats-server"; now process {pid}`,
	},
}
