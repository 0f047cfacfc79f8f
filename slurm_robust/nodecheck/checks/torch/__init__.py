"""Checks that compute: only in `--stage full`, each in a child process, skipped where torch is not installed."""
