package harness

import "holdfast/brokerapi/brokertest"

// PulsarOdd are topics whose names a Pulsar broker takes, the real one and the stand-in.
var PulsarOdd = []brokertest.OddTopic{
	{Name: "a tenant of its own", Topic: "/my-tenant~my-ns/orders"},
	{Name: "dots", Topic: "/a.b~c.d/orders.eu"},
	{Name: "colon and equals", Topic: "/a:b~c=d/orders"},
	{Name: "unicode", Topic: "/public~default/größe-日本語"},
	{Name: "spaces", Topic: "/public~default/my topic"},
	{Name: "percent", Topic: "/public~default/a%2Fb"},
	{Name: "question mark and hash", Topic: "/public~default/what?#now"},
	{Name: "wildcards", Topic: "/public~default/*.>"},
	{Name: "looks like a bundle", Topic: "/public~default/0x00000000_0xgggggggg"},
	{Name: "tilde", Topic: "/public~default/a~b"},
	{Name: "state", Topic: "/default/state"},
}
