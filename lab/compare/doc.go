// Package compare does the same harm to a cluster without and with Holdfast and stands what
// clients and operators see of both side by side: what comparepulsar and comparedanube have in
// common. A fault is a row, on two new clusters at the same time, so that what else the machine
// does harms both alike. A run is kept in a file of its own and not repeated; a row in which
// Holdfast looks worse is. Package verdict says what worse is.
//
// Packets are dropped in a network namespace of the program's own. Where it cannot have one, the
// rows that need it are left out, and that is said.
package compare
