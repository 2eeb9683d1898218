#!/bin/sh
# Makes what compose.yaml needs beside itself: .env, two secrets, a folder for backups.
# What is there already stays as it is.
set -eu
cd "$(dirname "$0")"
umask 077

[ -e .env ] || cp .env.example .env

# Only its owner gets into the folder; the files are read by the containers' own users.
mkdir -p secrets
for secret in postgres-password secret-key; do
    [ -s "secrets/$secret" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "secrets/$secret"
    chmod 0444 "secrets/$secret"
done

# Backups are written by user 10001 of the web image.
mkdir -p backups
if [ "$(id -u)" = 0 ]; then
    chown 10001 backups
elif [ "$(stat -c %u backups)" != 10001 ]; then
    echo "For backups: sudo chown 10001 $(pwd)/backups"
fi
echo "Now edit $(pwd)/.env"
