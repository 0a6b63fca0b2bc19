#!/bin/sh
# A deployment that keeps its lock, and hands it to the service that it starts: one deployment or service at a time, on all machines.
# Install setnx-lock-handover.service, then run this script, for example by ssh.
# Change: REDIS_URL, the key deploy:api, -e, the steps, the unit. If the server needs a password, add --password-file FILE.
set -eu
export REDIS_URL=redis://10.1.2.3/

# The service holds the lock while it runs. One on another machine has to be stopped there; this script waits for that.
systemctl stop setnx-lock-handover.service
# -e 5m: longer than any step takes. Other deployments wait.
SETNX_LOCK_TOKEN=$(/usr/local/bin/setnx-lock acquire --wait-forever --name= -e 5m deploy:api)
export SETNX_LOCK_TOKEN
# If a step fails, or this script is told to end.
trap '/usr/local/bin/setnx-lock release' EXIT
trap 'exit 1' HUP INT TERM

/usr/local/bin/install-api
# A new lease of 5 minutes. The token before is used up. By way of another variable: if this fails, the token before still counts.
token=$(/usr/local/bin/setnx-lock extend)
SETNX_LOCK_TOKEN=$token
/usr/local/bin/migrate-api

# Only root can read the file. systemd passes it on to the service.
(umask 077 && printf '%s\n' "$SETNX_LOCK_TOKEN" >/run/api.token)
systemctl start setnx-lock-handover.service
trap - EXIT
