// Package pulsar runs Holdfast beside a real Pulsar cluster: a bookie and brokers of the
// release of pom.xml, on a real etcd. What a run needs besides is here: clients that count, and
// bundles where they are wanted; command comparepulsar uses it too. The tests take minutes. All
// wears the build tag pulsar; make test-pulsar runs the tests.
//
// They want Java 17, and Maven unless HOLDFAST_LAB_PULSAR names a directory that has the jars
// of pom.xml; without, they are skipped and say why.
package pulsar
