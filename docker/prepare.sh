#!/bin/sh
# Creates what compose.yaml needs: .env, three secrets, a folder for backups.
# Keeps existing files.
set -eu
cd "$(dirname "$0")"
umask 077

[ -e .env ] || cp .env.example .env

# Only the owner can enter the folder; the containers' users read the files.
mkdir -p secrets
for secret in postgres-password secret-key ray-token; do
    [ -s "secrets/$secret" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$secret"
    chmod 0444 "secrets/$secret"
done

# User 10001 of the web image writes backups.
mkdir -p backups
if [ "$(id -u)" = 0 ]; then
    chown 10001 backups
elif [ "$(stat -c %u backups)" != 10001 ]; then
    echo "For backups: sudo chown 10001 $(pwd)/backups"
fi
echo "Now edit $(pwd)/.env"
