#!/bin/sh
# Makes the user of the sidecars in etcd, with rights on the keys of the brokers that are
# named and on nothing else: docs/security.md says key by key what each right is for.
#
#   etcd-roles.sh nats-0 nats-1 nats-2 < password
#   etcd-roles.sh nats-3                           later, for one more: the user is there
#
# PREFIX is the sidecars' --prefix, USER_NAME their --etcd-user. Run it as root of etcd, with
# etcdctl's own settings in the environment (ETCDCTL_ENDPOINTS, ETCDCTL_USER, …).
# MOVES=1 grants as well what it takes to move topics from broker to broker (holdfast unload, drain --move).
# Beside brokers that have data already the first start compares what they serve with all
# assignments: for that one,  etcdctl role grant-permission USER_NAME --prefix=true read PREFIX/cluster/brokers/
set -eu
: "${PREFIX:=}" "${USER_NAME:=holdfast}" "${MOVES:=}"
[ $# -gt 0 ] || { echo "usage: $0 BROKER… [< password]" >&2; exit 2; }
grant() { etcdctl role grant-permission "$USER_NAME" "$@"; }

etcdctl role get "$USER_NAME" >/dev/null 2>&1 || etcdctl role add "$USER_NAME"
grant --prefix=true read "$PREFIX/cluster/register/"
grant --prefix=true read "$PREFIX/cluster/members/"
grant readwrite "$PREFIX/cluster/era"
grant --prefix=true read "$PREFIX/topics/"
grant --prefix=true read "$PREFIX/cluster/moves/"
for broker; do
	grant readwrite "$PREFIX/cluster/register/$broker"
	grant --prefix=true read "$PREFIX/cluster/brokers/$broker/"
	grant readwrite "$PREFIX/cluster/brokers/$broker/state"
	grant readwrite "$PREFIX/cluster/members/$broker"
	grant readwrite "$PREFIX/cluster/drains/$broker"
done
if [ -n "$MOVES" ]; then
	for keys in brokers/ unassigned/ owners/ moves/ locks/drain; do
		grant --prefix=true readwrite "$PREFIX/cluster/$keys"
	done
fi
etcdctl user get "$USER_NAME" >/dev/null 2>&1 || etcdctl user add "$USER_NAME" --interactive=false
etcdctl user grant-role "$USER_NAME" "$USER_NAME"
